//! PyTorch files that are damaged, or that ask for more than tensors. Each is refused with one line, and nothing of it
//! is run.

use std::path::Path;

use proptest::prelude::*;

use super::craft::{
    archive, call, dict, floats, global, int, legacy_file, pickle, state_dict, text, view, whole, zip_file,
};
use super::{LAYER, check_message, check_refused, layer, layer_file, opened, read_layer};

/// A call of `os.system` that leaves a mark if anybody makes it.
fn shell(mark: &Path) -> Vec<u8> {
    call(
        global("posix", "system"),
        &[text(&format!("touch '{}'", mark.display()))],
    )
}

/// Wherever the call stands, the file is refused by the name of the function, and the call is not made. In the last
/// case the tensors are whole and the call's result is thrown away, which is how such files look in the wild.
#[test]
fn a_call_of_a_function_is_refused_by_its_name() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mark = dir.path().join("mark");
    let shell = || shell(&mark);
    let inner = dict(&layer());
    let mut among = layer();
    among.push(("hook", shell()));
    let thrown_away = [shell(), b"0".to_vec(), inner.clone()].concat();
    let values = [
        shell(),
        dict(&among),
        dict(&[("state_dict", inner.clone()), ("hook", shell())]),
        call(global("collections", "OrderedDict"), &[shell()]),
        thrown_away,
    ];
    for value in &values {
        check_refused(
            "weights.pt",
            &layer_file(value),
            &["`posix.system`", "nothing of it was run"],
        );
        let storages = [("0", 4, floats(&LAYER[..6])), ("1", 4, floats(&LAYER[6..]))];
        check_refused("weights.bin", &legacy_file(value, &storages), &["`posix.system`"]);
        check_refused("weights.pth", &pickle(value), &["`posix.system`"]);
    }
    assert!(!mark.exists(), "the call was made");
}

/// The other ways to name a function: by two strings, by strings from the memory, by the instruction that calls at
/// once, by text as protocol 0 writes it, by number, and by strings that are hidden under others.
#[test]
fn every_way_to_name_a_function_is_seen() {
    let file = |body: &[u8]| layer_file(&[body, b"0", &dict(&layer())].concat());
    let (os, system) = (b"\x8c\x02os", b"\x8c\x06system");
    let by_strings = [&os[..], system, b"\x93"].concat();
    check_refused("weights.pt", &file(&by_strings), &["`os.system`"]);
    // MEMOIZE twice, POP twice, BINGET of both.
    let from_memory = [&os[..], b"\x94", system, b"\x9400h\x00h\x01\x93"].concat();
    check_refused("weights.pt", &file(&from_memory), &["`os.system`"]);
    check_refused("weights.pt", &file(b"(ios\nsystem\n"), &["`os.system`"]);
    check_refused("weights.pt", b"cos\nsystem\n(S'true'\ntR.", &["`os.system`"]);
    check_refused("weights.pt", &file(b"\x82\x01"), &["not written out"]);
    // A third string on top, then POP.
    let hidden = [&os[..], system, b"\x8c\x01x0\x93"].concat();
    check_refused("weights.pt", &file(&hidden), &["not written out"]);
    // A name with a line end or an escape sequence in it stays one line and harmless to a terminal.
    let odd = [&b"\x8c\x04o\n\x1bs"[..], system, b"\x93"].concat();
    check_refused("weights.pt", &file(&odd), &["`o\\n\\u{1b}s.system`"]);
}

/// A whole module, a quantised tensor and an array of numpy are named; what training programs keep beside the tensors
/// is not taken for an attack.
#[test]
fn other_objects_are_named_and_plain_settings_pass() {
    let module = [
        global("__main__", "Net"),
        b")\x81".to_vec(),
        dict(&layer()),
        b"b".to_vec(),
    ]
    .concat();
    check_refused("weights.pt", &layer_file(&module), &["`__main__.Net`"]);
    let quantised = call(global("torch._utils", "_rebuild_qtensor"), &[int(0)]);
    check_refused(
        "weights.pt",
        &layer_file(&dict(&[("x", quantised)])),
        &["`torch._utils._rebuild_qtensor`"],
    );
    let array = call(global("numpy._core.multiarray", "_reconstruct"), &[int(0)]);
    check_refused(
        "weights.pt",
        &layer_file(&dict(&[("x", array)])),
        &["`numpy._core.multiarray._reconstruct`"],
    );

    let settings = dict(&[("lr", int(1))]);
    let namespace = [call(global("argparse", "Namespace"), &[]), settings, b"b".to_vec()].concat();
    let loss = call(global("numpy.core.multiarray", "scalar"), &[int(1)]);
    let value = dict(&[
        ("state_dict", state_dict(&layer())),
        ("args", namespace),
        ("loss", loss),
        ("device", call(global("torch", "device"), &[text("cuda")])),
    ]);
    let weights = opened("weights.pt", &layer_file(&value)).expect("settings beside the tensors");
    check_message(
        weights.wrapper().expect("a wrapper"),
        &["`args`, `device`, `loss` beside it"],
    );
    assert_eq!(read_layer(weights).expect("whole weights"), LAYER);
}

/// A call of the tensor class itself makes something without storage; it must not pass for a tensor.
#[test]
fn an_empty_call_of_the_tensor_class_is_no_tensor() {
    let mut among = layer();
    among.push(("x", call(global("torch", "Tensor"), &[])));
    check_refused("weights.pt", &layer_file(&dict(&among)), &["`x` is no tensor"]);
}

/// A download that broke off is seen on opening, at whatever byte, or at the latest when a value is asked for.
#[test]
fn truncated_files_are_refused() {
    let storages = [("0", 4, floats(&LAYER[..6])), ("1", 4, floats(&LAYER[6..]))];
    for whole in [layer_file(&dict(&layer())), legacy_file(&dict(&layer()), &storages)] {
        for length in 0..whole.len() {
            let Err(error) = opened("weights.pt", &whole[..length]).and_then(read_layer) else {
                panic!("{length} of {} bytes were read", whole.len());
            };
            check_message(&error.to_string(), &["weights.pt", "download"]);
        }
    }
}

/// A tensor that reaches out of its storage, a storage that is not there, and a shape of more bytes than any tensor
/// has are refused, and no memory is asked for that the file does not have.
#[test]
fn tensors_that_do_not_fit_their_storage_are_refused() {
    let open = |tensor: Vec<u8>| {
        opened(
            "weights.pt",
            &zip_file(&dict(&[("x", tensor)]), &[("0", floats(&[1.0]))]),
        )
    };
    let refused_on_opening = |tensor: Vec<u8>, expected: &str| match open(tensor) {
        Ok(_) => panic!("the tensor was accepted"),
        Err(error) => check_message(&error.to_string(), &["weights.pt", expected]),
    };
    refused_on_opening(view("FloatStorage", "0", 1, 0, &[2], &[1]), "needs 2 elements");
    refused_on_opening(view("FloatStorage", "0", 1, 1, &[1], &[1]), "needs 2 elements");
    refused_on_opening(view("FloatStorage", "0", 1, 0, &[-1], &[1]), "non-negative");
    refused_on_opening(view("FloatStorage", "0", 1, 0, &[i32::MAX, 4], &[0, 0]), "byte limit");
    let absent = open(whole("FloatStorage", "7", &[1])).expect("storages are looked up later");
    let error = absent
        .values("x", &[1])
        .expect_err("there is no such storage")
        .to_string();
    check_message(&error, &["weights.pt", "'x'", "data/7"]);
    let lied = open(view("FloatStorage", "0", 1000, 0, &[1000], &[1])).expect("storages are looked up later");
    let error = lied
        .values("x", &[1000])
        .expect_err("the storage is shorter")
        .to_string();
    check_message(&error, &["weights.pt", "'x'", "1000 elements"]);
}

/// A file from a machine with the other byte order would give other numbers without an error.
#[test]
fn big_endian_files_are_refused() {
    let file = archive(&[
        ("weights/data.pkl", &pickle(&dict(&layer()))),
        ("weights/byteorder", b"big"),
    ]);
    check_refused("weights.pt", &file, &["Big-endian"]);
}

/// Something that a pickle does not allow, before and behind what it does.
#[test]
fn damaged_pickles_are_refused() {
    check_refused("weights.pt", &layer_file(b"\xff"), &["0xff is no instruction"]);
    check_refused("weights.pt", &layer_file(b"}h\x05"), &["memo"]);
    check_refused("weights.pt", &layer_file(b"}s"), &["underflow"]);
    // BINUNICODE of four gigabytes.
    check_refused("weights.pt", &layer_file(b"X\xff\xff\xff\xff"), &["PyTorch file"]);
    let magic_alone = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";
    check_refused("weights.pt", magic_alone, &["broken PyTorch file", "download it again"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever bytes are changed, the file is read or refused in one line; nothing panics. Values that are read and
    /// differ can only come from a change that a checksum does not cover.
    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), legacy: bool) {
        let storages = [("0", 4, floats(&LAYER[..6])), ("1", 4, floats(&LAYER[6..]))];
        let mut file = if legacy {
            legacy_file(&state_dict(&layer()), &storages)
        } else {
            layer_file(&state_dict(&layer()))
        };
        for (place, byte) in changes {
            let place = place.index(file.len());
            file[place] = byte;
        }
        if let Err(error) = opened("weights.pt", &file).and_then(read_layer) {
            let message = error.to_string();
            prop_assert!(!message.contains('\n') && message.contains("weights.pt"), "{message:?}");
        }
    }
}
