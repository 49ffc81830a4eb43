// The site's search runs in a Worker, which a browser refuses to a page opened as a file.
// There this class stands in for it: the same script, in a hidden frame.
(() => {
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.frame = null; // set once the script is loaded
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.start(frame, address), { once: true });
      document.documentElement.append(frame);
    }

    start(frame, address) {
      const answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.contentWindow.postMessage = answer;
      const script = frame.contentDocument.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        this.frame = frame.contentWindow;
        this.waiting.forEach((data) => this.postMessage(data));
      });
      frame.contentDocument.body.append(script);
    }

    postMessage(data) {
      if (this.frame) this.frame.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  }

  // The search script looks for this name to learn where it runs.
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
