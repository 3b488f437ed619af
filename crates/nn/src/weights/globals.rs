//! What a pickle asks for, found out without running it.
//!
//! A pickle is a program for a small stack machine. Two of its instructions name a Python function or class, and a
//! third one calls what was named; that is how a file of "weights" can run a shell. The reader of this program calls
//! nothing but its own few functions that build tensors, so such a file does no harm here. It is refused all the same,
//! and its name for the thing is told: even where the call's result is thrown away and the tensors beside it are whole,
//! nobody should go on to load the file with Python.
//!
//! The instructions are those of CPython's `Lib/pickletools.py`.

use std::collections::HashMap;
use std::io::{self, BufRead, ErrorKind, Read};

/// The functions and classes that files of tensors name, by module. Calling them makes tensors and plain values only.
const NEEDED: [(&str, &[&str]); 13] = [
    (
        "torch._utils",
        &[
            "_rebuild_tensor",
            "_rebuild_tensor_v2",
            "_rebuild_tensor_v3",
            "_rebuild_parameter",
            "_rebuild_parameter_with_state",
        ],
    ),
    ("torch._tensor", &["_rebuild_from_type_v2"]),
    ("torch.nn.parameter", &["Parameter"]),
    ("torch.storage", &["TypedStorage", "UntypedStorage"]),
    (
        "torch",
        &[
            "BFloat16Storage",
            "BoolStorage",
            "ByteStorage",
            "CharStorage",
            "DoubleStorage",
            "FloatStorage",
            "HalfStorage",
            "IntStorage",
            "LongStorage",
            "ShortStorage",
            "Size",
            "Tensor",
            "UntypedStorage",
            "bfloat16",
            "bool",
            "device",
            "float16",
            "float32",
            "float64",
            "int16",
            "int32",
            "int64",
            "int8",
            "uint16",
            "uint32",
            "uint64",
            "uint8",
        ],
    ),
    ("collections", &["OrderedDict"]),
    ("builtins", &["frozenset", "set"]),
    ("__builtin__", &["frozenset", "set"]),
    // What training programs put beside the tensors: a loss as a numpy number, and their own settings.
    ("_codecs", &["encode"]),
    ("numpy", &["dtype"]),
    ("numpy.core.multiarray", &["scalar"]),
    ("numpy._core.multiarray", &["scalar"]),
    ("argparse", &["Namespace"]),
];

/// No name that is needed is longer. Longer strings are read past.
const LONGEST_NAME: u64 = 64;

/// Reads one pickle to its end and returns the first thing it asks for that tensors do not need, if there is one.
///
/// # Errors
///
/// The bytes are no pickle, or end before it does.
pub(super) fn first_foreign(pickle: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut scan = Scan::default();
    let mut first = None;
    loop {
        match scan.step(pickle)? {
            Step::Global(module, name) if !is_needed(&module, &name) && first.is_none() => {
                first = Some(format!("{module}.{name}").escape_debug().to_string());
            }
            Step::Unknown if first.is_none() => first = Some("a name not written out".to_owned()),
            Step::Stop => return Ok(first),
            Step::Global(..) | Step::Unknown | Step::Other => {}
        }
    }
}

fn is_needed(module: &str, name: &str) -> bool {
    let of_module = NEEDED.iter().find(|(needed, _)| *needed == module);
    of_module.is_some_and(|(_, names)| names.contains(&name))
}

/// What an instruction was, as far as it matters here.
enum Step {
    /// It names this function or class.
    Global(String, String),
    /// It names something, but not by strings that were written right before it.
    Unknown,
    /// The last one.
    Stop,
    Other,
}

/// What is known of the machine: the two values on top of its stack, if they are short strings, and its memory of such.
#[derive(Default)]
struct Scan {
    under: Option<String>,
    top: Option<String>,
    memo: HashMap<u32, Option<String>>,
}

impl Scan {
    fn step(&mut self, pickle: &mut impl BufRead) -> io::Result<Step> {
        let opcode = fixed::<1>(pickle)?[0];
        match opcode {
            // GLOBAL, and INST, which calls at once what it names.
            b'c' | b'i' => {
                let (module, name) = (line(pickle)?, line(pickle)?);
                self.forget();
                return Ok(Step::Global(module, name));
            }
            // STACK_GLOBAL takes the two strings on top.
            0x93 => {
                let named = self.under.take().zip(self.top.take());
                return Ok(named.map_or(Step::Unknown, |(module, name)| Step::Global(module, name)));
            }
            // EXT1, EXT2 and EXT4 name by a number that only the writer's Python can look up.
            0x82..=0x84 => {
                skip(pickle, 1 << (opcode - 0x82))?;
                self.forget();
                return Ok(Step::Unknown);
            }
            b'.' => return Ok(Step::Stop),
            // Strings: SHORT_BINUNICODE and SHORT_BINSTRING, BINUNICODE and BINSTRING, BINUNICODE8, UNICODE.
            0x8c | b'U' => {
                let length = u64::from(fixed::<1>(pickle)?[0]);
                self.push_string(pickle, length)?;
            }
            b'X' | b'T' => {
                let length = u64::from(u32::from_le_bytes(fixed(pickle)?));
                self.push_string(pickle, length)?;
            }
            0x8d => {
                let length = u64::from_le_bytes(fixed(pickle)?);
                self.push_string(pickle, length)?;
            }
            b'V' => {
                let text = line(pickle)?;
                self.push(Some(text));
            }
            // The memory: BINPUT, LONG_BINPUT, PUT and MEMOIZE; BINGET, LONG_BINGET and GET. DUP.
            b'q' => self.remember(u32::from(fixed::<1>(pickle)?[0])),
            b'r' => self.remember(u32::from_le_bytes(fixed(pickle)?)),
            b'p' => self.remember(number(&line(pickle)?)?),
            0x94 => self.remember(self.memo.len() as u32),
            b'h' => self.recall(u32::from(fixed::<1>(pickle)?[0])),
            b'j' => self.recall(u32::from_le_bytes(fixed(pickle)?)),
            b'g' => self.recall(number(&line(pickle)?)?),
            b'2' => self.push(self.top.clone()),
            // PROTO and FRAME leave the stack alone.
            0x80 => skip(pickle, 1)?,
            0x95 => skip(pickle, 8)?,
            // Everything else may move the stack, so what lies on top is no longer known.
            other => {
                skip_argument(other, pickle)?;
                self.forget();
            }
        }
        Ok(Step::Other)
    }

    fn forget(&mut self) {
        self.under = None;
        self.top = None;
    }

    fn push(&mut self, value: Option<String>) {
        self.under = std::mem::replace(&mut self.top, value);
    }

    fn push_string(&mut self, pickle: &mut impl BufRead, length: u64) -> io::Result<()> {
        if length > LONGEST_NAME {
            skip(pickle, length)?;
            self.push(None);
            return Ok(());
        }
        let mut bytes = vec![0; length as usize];
        pickle.read_exact(&mut bytes)?;
        self.push(String::from_utf8(bytes).ok());
        Ok(())
    }

    fn remember(&mut self, place: u32) {
        self.memo.insert(place, self.top.clone());
    }

    fn recall(&mut self, place: u32) {
        self.push(self.memo.get(&place).cloned().flatten());
    }
}

/// Reads past the argument of an instruction that names nothing and puts no string on the stack.
fn skip_argument(opcode: u8, pickle: &mut impl BufRead) -> io::Result<()> {
    match opcode {
        // MARK, POP, POP_MARK, NONE, REDUCE, BUILD, DICT, LIST, TUPLE, SETITEM, APPEND, the empty containers, APPENDS,
        // SETITEMS, BINPERSID, OBJ.
        b'(' | b'0' | b'1' | b'N' | b'R' | b'b' | b'd' | b'l' | b't' | b's' | b'a' | b')' | b']' | b'}' | b'e'
        | b'u' | b'Q' | b'o' => Ok(()),
        // NEWOBJ, the short tuples, True and False, the sets, NEWOBJ_EX.
        0x81 | 0x85..=0x89 | 0x8f..=0x92 => Ok(()),
        // BININT1, BININT2, BININT, BINFLOAT.
        b'K' => skip(pickle, 1),
        b'M' => skip(pickle, 2),
        b'J' => skip(pickle, 4),
        b'G' => skip(pickle, 8),
        // INT, LONG, FLOAT, PERSID, STRING: one line of text.
        b'I' | b'L' | b'F' | b'P' | b'S' => line(pickle).map(drop),
        // LONG1 and SHORT_BINBYTES, LONG4 and BINBYTES, BINBYTES8 and BYTEARRAY8.
        0x8a | b'C' => {
            let length = u64::from(fixed::<1>(pickle)?[0]);
            skip(pickle, length)
        }
        0x8b | b'B' => {
            let length = u64::from(u32::from_le_bytes(fixed(pickle)?));
            skip(pickle, length)
        }
        0x8e | 0x96 => {
            let length = u64::from_le_bytes(fixed(pickle)?);
            skip(pickle, length)
        }
        other => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{other:#04x} is no instruction of a pickle"),
        )),
    }
}

fn fixed<const N: usize>(pickle: &mut impl BufRead) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    pickle.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn skip(pickle: &mut impl BufRead, length: u64) -> io::Result<()> {
    let skipped = io::copy(&mut pickle.take(length), &mut io::sink())?;
    if skipped == length {
        Ok(())
    } else {
        Err(ErrorKind::UnexpectedEof.into())
    }
}

fn line(pickle: &mut impl BufRead) -> io::Result<String> {
    /// Text of one line is a name or a number; a file without line ends must not be read to its end.
    const LONGEST_LINE: u64 = 1 << 16;
    let mut bytes = Vec::new();
    pickle.take(LONGEST_LINE).read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    // As other readers do, so that a name is the same one here and there.
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

fn number(text: &str) -> io::Result<u32> {
    text.parse().map_err(|_| ErrorKind::InvalidData.into())
}
