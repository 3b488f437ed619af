//! Runs a command and shows it, in a form that can be pasted into a shell.

use anyhow::{Context, Result};
use xshell::Cmd;

/// Prints `command` and runs it.
///
/// # Errors
///
/// The command did not start or did not succeed; the message shows it again.
pub(crate) fn run(command: Cmd<'_>) -> Result<()> {
    run_with(&[], command)
}

/// Like [`run`], with environment variables, which are printed too.
pub(crate) fn run_with(environment: &[(&str, &str)], command: Cmd<'_>) -> Result<()> {
    let line = render(environment, &command);
    eprintln!("$ {line}");
    let command = command.envs(environment.iter().copied());
    command
        .quiet()
        .run()
        .with_context(|| format!("this command failed: {line}"))
}

/// Prints `command`, runs it, and returns what it prints, without the last line's end.
///
/// # Errors
///
/// As for [`run`].
pub(crate) fn read(command: Cmd<'_>) -> Result<String> {
    let line = render(&[], &command);
    eprintln!("$ {line}");
    command
        .quiet()
        .read()
        .with_context(|| format!("this command failed: {line}"))
}

/// The command as it would be typed.
fn render(environment: &[(&str, &str)], command: &Cmd<'_>) -> String {
    let mut line = String::new();
    for (name, value) in environment {
        let quote = if value.contains(char::is_whitespace) { "'" } else { "" };
        line.push_str(&format!("{name}={quote}{value}{quote} "));
    }
    line + &command.to_string()
}

#[cfg(test)]
mod tests {
    use xshell::{Shell, cmd};

    use super::*;

    #[test]
    fn the_environment_is_shown_before_the_command() {
        let shell = Shell::new().unwrap();
        let line = render(
            &[("ONE", "1"), ("TWO", "-D warnings")],
            &cmd!(shell, "cargo doc --no-deps"),
        );
        assert_eq!(line, "ONE=1 TWO='-D warnings' cargo doc --no-deps");
    }
}
