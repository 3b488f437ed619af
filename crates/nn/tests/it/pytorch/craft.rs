//! PyTorch files written by hand, instruction by instruction, so that each test shows what its file holds.

use std::io::{Cursor, Write};

use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

/// A string: BINUNICODE.
pub(super) fn text(value: &str) -> Vec<u8> {
    [b"X", &(value.len() as u32).to_le_bytes()[..], value.as_bytes()].concat()
}

/// A whole number: BININT.
pub(super) fn int(value: i32) -> Vec<u8> {
    [b"J", &value.to_le_bytes()[..]].concat()
}

/// A function or class: GLOBAL.
pub(super) fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

/// MARK, the items, TUPLE.
pub(super) fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(", &items.concat()[..], b"t"].concat()
}

/// The function called with the arguments: REDUCE.
pub(super) fn call(function: Vec<u8>, arguments: &[Vec<u8>]) -> Vec<u8> {
    [function, tuple(arguments), b"R".to_vec()].concat()
}

/// EMPTY_DICT, MARK, keys and values, SETITEMS.
pub(super) fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    [b"}".to_vec(), items(entries)].concat()
}

/// What `state_dict()` returns: an `OrderedDict` with version numbers attached.
pub(super) fn state_dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let versions = dict(&[("", dict(&[("version", int(1))]))]);
    let attributes = dict(&[("_metadata", versions)]);
    let empty = call(global("collections", "OrderedDict"), &[]);
    [empty, items(entries), attributes, b"b".to_vec()].concat()
}

fn items(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs = entries.iter().flat_map(|(key, value)| [text(key), value.clone()]);
    [b"(".to_vec(), pairs.collect::<Vec<_>>().concat(), b"u".to_vec()].concat()
}

/// A tensor: `shape` and `stride` over the storage `key` of `elements` elements, beginning at `offset`.
pub(super) fn view(kind: &str, key: &str, elements: i32, offset: i32, shape: &[i32], stride: &[i32]) -> Vec<u8> {
    view_on("cpu", kind, key, elements, offset, shape, stride)
}

/// The same, saved from this device.
pub(super) fn view_on(
    device: &str,
    kind: &str,
    key: &str,
    elements: i32,
    offset: i32,
    shape: &[i32],
    stride: &[i32],
) -> Vec<u8> {
    let id = [
        text("storage"),
        global("torch", kind),
        text(key),
        text(device),
        int(elements),
    ];
    // BINPERSID turns the tuple into the storage.
    let storage = [tuple(&id), b"Q".to_vec()].concat();
    let numbers = |numbers: &[i32]| tuple(&numbers.iter().map(|n| int(*n)).collect::<Vec<_>>());
    let hooks = call(global("collections", "OrderedDict"), &[]);
    // NEWFALSE: no gradient is required.
    let arguments = [storage, int(offset), numbers(shape), numbers(stride), vec![0x89], hooks];
    call(global("torch._utils", "_rebuild_tensor_v2"), &arguments)
}

/// A tensor that is the whole of its storage.
pub(super) fn whole(kind: &str, key: &str, shape: &[i32]) -> Vec<u8> {
    let mut stride = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        stride[axis - 1] = stride[axis] * shape[axis];
    }
    view(kind, key, shape.iter().product(), 0, shape, &stride)
}

/// PROTO 2, the value, STOP.
pub(super) fn pickle(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02", value, b"."].concat()
}

/// The bytes of f32 values.
pub(super) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A zip archive of these entries, stored as they are.
pub(super) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in entries {
        writer.start_file(*name, options).expect("a new entry");
        writer.write_all(bytes).expect("a written entry");
    }
    writer.finish().expect("a whole archive").into_inner()
}

/// What `torch.save` writes of a value since PyTorch 1.6.
pub(super) fn zip_file(value: &[u8], storages: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pickle = pickle(value);
    let names: Vec<String> = storages.iter().map(|(key, _)| format!("weights/data/{key}")).collect();
    let mut entries: Vec<(&str, &[u8])> = vec![("weights/data.pkl", &pickle), ("weights/byteorder", b"little")];
    entries.extend(
        names
            .iter()
            .map(String::as_str)
            .zip(storages.iter().map(|(_, bytes)| &bytes[..])),
    );
    entries.push(("weights/version", b"3\n"));
    archive(&entries)
}

/// What `torch.save` wrote before: five pickles, then every storage with its element count.
pub(super) fn legacy_file(value: &[u8], storages: &[(&str, usize, Vec<u8>)]) -> Vec<u8> {
    let magic = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    let system = dict(&[("protocol_version", int(1001)), ("little_endian", vec![0x88])]);
    let keys: Vec<u8> = storages.iter().flat_map(|(key, ..)| text(key)).collect();
    let keys = [b"](", &keys[..], b"e"].concat();
    let mut file = [&magic[..], &int(1001), &system, value, &keys].map(pickle).concat();
    for (_, element_bytes, bytes) in storages {
        file.extend(((bytes.len() / element_bytes) as i64).to_le_bytes());
        file.extend(bytes);
    }
    file
}
