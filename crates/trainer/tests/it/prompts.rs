//! Prompt files as users have them, clean and dirty.

use std::path::Path;

use trainer::config::{ConfigError, PromptFile, read_prompts};

fn read(bytes: &[u8]) -> Result<PromptFile, ConfigError> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("prompts.txt");
    std::fs::write(&path, bytes).expect("a written file");
    read_prompts(&path)
}

#[track_caller]
fn check(bytes: &[u8], expected: &[&str]) -> PromptFile {
    let file = read(bytes).expect("a prompt file");
    assert_eq!(file.prompts, expected);
    file
}

#[track_caller]
fn check_refused(result: Result<PromptFile, ConfigError>, expected: &[&str]) {
    let message = result.expect_err("a bad prompt file").to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

/// The last line counts with and without its line end.
#[test]
fn last_line_needs_no_line_end() {
    check(b"a cat\na dog", &["a cat", "a dog"]);
    check(b"a cat\na dog\n", &["a cat", "a dog"]);
    check(b"a cat", &["a cat"]);
}

/// Windows line ends leave no invisible character behind, alone or mixed with others.
#[test]
fn windows_line_ends() {
    check(b"a cat\r\na dog\r\n", &["a cat", "a dog"]);
    check(b"a cat\r\na dog\na bird", &["a cat", "a dog", "a bird"]);
}

/// Only line feeds end a prompt; the other characters that some programs split at are part of the text, and so are
/// tabs and spaces around it.
#[test]
fn other_separators_are_text() {
    for inside in [
        "a\u{2028}b",
        "a\u{2029}b",
        "a\u{85}b",
        "a\u{b}b",
        "a\u{c}b",
        "a\tb",
        "a\rb",
    ] {
        check(format!("{inside}\nc\n").as_bytes(), &[inside, "c"]);
    }
    check(b"  two spaces \n", &["  two spaces "]);
}

/// A byte-order mark belongs to the file and not to the first prompt.
#[test]
fn byte_order_mark_is_no_text() {
    check(b"\xEF\xBB\xBFa cat\na dog\n", &["a cat", "a dog"]);
}

/// Blank lines are passed over and counted; texts that occur twice stay two prompts and are counted.
#[test]
fn blank_lines_and_duplicates_are_counted() {
    let file = check(b"\na cat\n\n \t\na cat\na dog\n\n", &["a cat", "a cat", "a dog"]);
    assert_eq!((file.blank_lines, file.duplicates), (4, 1));
    let file = check(b"a cat\n", &["a cat"]);
    assert_eq!((file.blank_lines, file.duplicates), (0, 0));
}

/// Text beyond ASCII is kept as it is.
#[test]
fn unicode_is_kept() {
    check("ein Café ☕\n猫\n".as_bytes(), &["ein Café ☕", "猫"]);
}

/// Bytes that are no UTF-8 are named by line and byte, with the encoding they probably come from: "a cat’s hat" as
/// Windows-1252 has 0x92 at byte 6.
#[test]
fn other_encodings_are_named() {
    check_refused(
        read(b"a dog\na cat\x92s hat\n"),
        &["prompts.txt, line 2", "byte 6", "0x92", "Windows-1252", "UTF-8"],
    );
    check_refused(read(b"\xEF\xBB\xBFok\nb\xE9b\xE9\n"), &["line 2", "byte 2", "0xe9"]);
    check_refused(read(b"cut off \xE2\x98"), &["line 1", "byte 9"]);
    check_refused(
        read(b"\xFF\xFEa\0 \0c\0a\0t\0"),
        &["line 1", "UTF-16", "save it as UTF-8"],
    );
    check_refused(read(b"\xFE\xFF\0a"), &["UTF-16"]);
}

/// A file without a prompt, a folder and a path that does not exist: each with its absolute path.
#[test]
fn files_without_prompts_are_refused() {
    check_refused(read(b""), &["prompts.txt", "holds no prompt"]);
    check_refused(read(b"\n \n\r\n"), &["prompts.txt", "holds no prompt"]);
    check_refused(read(b"\xEF\xBB\xBF"), &["holds no prompt"]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    check_refused(read_prompts(dir.path()), &["is a folder", "one prompt per line"]);
    let here = std::env::current_dir().expect("a current folder");
    let absolute = here.join("no/such/file.txt").display().to_string();
    check_refused(
        read_prompts(Path::new("no/such/file.txt")),
        &[&absolute, "one prompt per line"],
    );
}
