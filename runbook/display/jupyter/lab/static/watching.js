// A notebook page that is opened while its kernel works shows what the running cell shows, as it goes on.
//
// JupyterLab forgets a running cell's output when its page is closed. This asks the kernel of each notebook that is
// opened what its cells show (runbook/display/jupyter/open_pages.py answers, also while a cell runs) and lets the cell's output
// area follow the running request as if this page had made it. Nothing is executed. Kernels without runbook do not
// answer. JupyterLab loads this file as it is: there is nothing to build.
"use strict";
(() => {
  const QUESTION = "runbook.viewer";
  const ANSWER = "application/vnd.runbook.viewer.v1+json";

  // What an output area expects of a request, for one that another page made.
  class Joined {
    constructor(request) {
      this.msg = { header: { msg_id: request } };
      this.isDisposed = false;
      this.done = new Promise(resolve => {
        this.end = resolve;
      });
      this.onIOPub = this.onReply = this.onStdin = () => undefined;
    }

    // The output area calls it when the cell is run again.
    dispose() {
      this.isDisposed = true;
      this.end();
    }
  }

  class Page {
    constructor(panel) {
      this.panel = panel;
      this.session = panel.sessionContext;
      this.joined = null;
      this.session.iopubMessage.connect(this.follow, this);
      this.session.kernelChanged.connect(this.ask, this);
      panel.context.ready.then(() => this.ask());
      panel.node.addEventListener("click", event => this.click(event.target.closest("[data-runbook-click]")));
    }

    kernel() {
      return this.panel.isDisposed || !this.session.session ? null : this.session.session.kernel;
    }

    ask() {
      const kernel = this.kernel();
      if (kernel) {
        kernel.requestCommInfo({ target_name: QUESTION }).catch(() => undefined); // the page was closed before the answer
      }
    }

    // A button of a widget that this page could not load: the kernel is told what the widget would tell it.
    click(button) {
      const kernel = button && this.kernel();
      if (!kernel || (button.dataset.runbookText && !this.type(kernel, button))) {
        return;
      }
      if (!button.dataset.runbookText) { // a note may be followed by another one
        button.disabled = true;
        button.textContent += ": asked";
      }
      const comm = kernel.createComm("jupyter.widget", button.dataset.runbookClick);
      comm.send({ method: "custom", content: { event: "click" } });
    }

    // The text in the field beside a button is told first, as the widget would; false where nothing was typed.
    type(kernel, button) {
      const field = button.parentElement.querySelector(".runbook-text-" + button.dataset.runbookText);
      const text = field ? field.value.trim() : "";
      if (!text) {
        return false;
      }
      const comm = kernel.createComm("jupyter.widget", button.dataset.runbookText);
      comm.send({ method: "update", state: { value: text }, buffer_paths: [] });
      field.value = "";
      return true;
    }

    follow(_, message) {
      const kind = message.header.msg_type;
      const answer = kind === "display_data" && message.content.data && message.content.data[ANSWER];
      if (answer) {
        answer.cells.forEach(displays => this.show(displays));
      } else if (this.joined && !this.joined.isDisposed) {
        const own = message.parent_header.msg_id === this.joined.msg.header.msg_id;
        if (own || kind === "update_display_data") {
          this.joined.onIOPub(message);
        }
        if (own && kind === "status" && message.content.execution_state === "idle") {
          this.finish();
        }
      }
    }

    // A cell that this page runs itself, or whose end is in the file, is left as it is.
    show(displays) {
      const index = this.panel.content.widgets.findIndex(cell => cell.model.id === displays.cell);
      const cell = this.panel.content.widgets[index];
      if (!cell || cell.model.type !== "code" || cell.model.executionState === "running") {
        return;
      }
      if (!displays.running && cell.model.executionCount !== null) {
        return;
      }
      const joined = new Joined(displays.request);
      cell.model.clearExecution();
      cell.outputArea.future = joined;
      for (const { id, data } of displays.shown) {
        const content = { data, metadata: {}, transient: { display_id: id } };
        joined.onIOPub({ header: { msg_type: "display_data" }, parent_header: joined.msg.header, content });
      }
      Object.assign(this, { joined, cell, number: displays.number });
      if (displays.running) {
        cell.model.executionState = "running";
        this.panel.content.scrollToItem(index, "smart").catch(() => undefined);
      } else {
        this.finish();
      }
    }

    finish() {
      this.cell.model.executionCount = this.number;
      this.cell.model.executionState = "idle";
      this.joined.end();
      this.joined = null;
    }
  }

  const plugin = {
    id: "gpt3-runbook:watching",
    description: "A page that is opened while a cell runs shows what that cell shows.",
    autoStart: true,
    activate: app => {
      app.docRegistry.addWidgetExtension("Notebook", { createNew: panel => void new Page(panel) });
    }
  };
  const container = { init: () => undefined, get: async () => () => ({ __esModule: true, default: plugin }) };
  (window._JUPYTERLAB = window._JUPYTERLAB || {})["gpt3-runbook"] = container;
})();
