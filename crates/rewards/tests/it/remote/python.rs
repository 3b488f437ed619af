//! `examples/reward_server.py` as a child process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Scorers that the example server can be given: one that reads the pictures, and one that fails as its first prompt
/// says. The first decodes PNG files by itself, so that nothing beside Python has to be installed.
const SCORERS: &str = r#"
import json, os, struct, time, zlib

def rows(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        chunk = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
            assert (depth, colour, interlaced) == (8, 2, 0), "8-bit RGB"
        if kind == b"IDAT":
            data += chunk
        at += 12 + length
    data, above = zlib.decompress(data), bytearray(3 * width)
    for y in range(height):
        line = data[y * (3 * width + 1):(y + 1) * (3 * width + 1)]
        row = bytearray(3 * width)
        for x in range(3 * width):
            left = row[x - 3] if x >= 3 else 0
            up, corner = above[x], above[x - 3] if x >= 3 else 0
            nearest = min((left, up, corner), key=lambda level: abs(left + up - corner - level))
            guess = (0, left, up, (left + up) // 2, nearest)[line[0]]
            row[x] = (line[x + 1] + guess) % 256
        yield row
        above = row

def brightness(images, prompts):
    scores = []
    for png in images:
        luma = [0.299 * row[x] + 0.587 * row[x + 1] + 0.114 * row[x + 2] for row in rows(png) for x in range(0, len(row), 3)]
        scores.append(sum(luma) / len(luma) / 255)
    return scores

def prompt_bytes(images, prompts):
    return [len(prompt.encode()) for prompt in prompts]

def fault(images, prompts):
    scores, kind = [0.5] * len(images), prompts[0]
    if kind == "slow":
        time.sleep(60)
    if kind == "short":
        scores.pop()
    if kind == "nan":
        scores[-1] = float("nan")
    if kind == "raise":
        raise RuntimeError("no model\nwas loaded")
    if kind == "none":
        scores[-1] = None
    if kind == "garbage":
        json.dumps = lambda reply: "<html>hello</html>"
    if kind == "gone":
        os._exit(3)
    return scores
"#;

/// A running example server; it is stopped when dropped.
pub(crate) struct PythonService {
    pub(crate) url: String,
    child: Child,
    _folder: TempDir,
}

impl PythonService {
    /// Starts the server with one of the functions above, on a free port.
    pub(crate) fn start(function: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("scorers.py"), SCORERS).expect("written");
        let messages = folder.path().join("messages.txt");
        let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/reward_server.py");
        let child = Command::new("python3")
            .arg(server.canonicalize().expect("the example server"))
            .args(["--port", "0", "--scorer", &format!("scorers:{function}")])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&messages).expect("created"))
            .spawn();
        let mut child = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("there is no `python3`; install Python 3.8 or later (on Debian: apt-get install python3)")
            }
            child => child.expect("a child process"),
        };
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let mut service = Self {
            url: String::new(),
            child,
            _folder: folder,
        };
        match line.trim().strip_prefix("listening on ") {
            Some(url) => url.clone_into(&mut service.url),
            None => panic!(
                "the example server did not start: {}",
                fs::read_to_string(messages).expect("its messages")
            ),
        }
        service
    }
}

impl Drop for PythonService {
    fn drop(&mut self) {
        // It may have ended by itself, which is what one of the faults is.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
