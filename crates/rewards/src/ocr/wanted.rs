//! What a prompt wants to be written, and how much of it was read.
//!
//! The measure is that of Flow-GRPO's `OcrScorer` (Liu et al. 2025, arXiv 2505.05470): with spaces removed and in lower
//! case on both sides, w the wanted text, r the text that was read and |w| the number of w's characters,
//!
//! ```text
//! accuracy = 1 − d / |w|,   d = 0                         if r contains w
//!                           d = min(levenshtein(r, w), |w|)   otherwise
//! ```
//!
//! Only the space U+0020 is removed, and lower case is Unicode's, as in the original. Characters are Unicode scalar
//! values.

/// Why a prompt wants no text; reads as the end of a sentence about the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWantedText {
    /// There is no quotation mark.
    #[error("has no text in double quotes; write what the picture shall say like \"this\"")]
    NoQuotes,
    /// A quotation mark opens and none closes.
    #[error("has a double quote that is never closed; close it")]
    Unclosed,
    /// Nothing but spaces stands between the marks.
    #[error("has nothing between its first double quotes; write there what the picture shall say")]
    Empty,
}

/// The text that a prompt puts in double quotes; the first such piece if there are several.
///
/// Straight marks count first, wherever they stand, because Flow-GRPO knows only them. A prompt without any may use the
/// curly marks `“` and `”` instead.
///
/// # Errors
///
/// There is no such piece, or it is empty.
pub fn quoted(prompt: &str) -> Result<&str, NoWantedText> {
    let [open, close] = if prompt.contains('"') {
        ['"', '"']
    } else {
        ['“', '”']
    };
    let (_, rest) = prompt.split_once(open).ok_or(NoWantedText::NoQuotes)?;
    let (piece, _) = rest.split_once(close).ok_or(NoWantedText::Unclosed)?;
    if normalised(piece).is_empty() {
        return Err(NoWantedText::Empty);
    }
    Ok(piece)
}

/// A text that a picture shall show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    normalised: String,
    length: usize,
}

impl Wanted {
    /// What the prompt wants, by [`quoted`].
    ///
    /// # Errors
    ///
    /// As for [`quoted`].
    pub fn of(prompt: &str) -> Result<Self, NoWantedText> {
        let normalised = normalised(quoted(prompt)?);
        let length = normalised.chars().count();
        Ok(Self { normalised, length })
    }

    /// The text as it is compared: without spaces, in lower case.
    #[must_use]
    pub fn normalised(&self) -> &str {
        &self.normalised
    }

    /// How much of the text was read, from 0 (nothing) to 1 (all of it), by the module's equation.
    #[must_use]
    pub fn accuracy(&self, read: &str) -> f64 {
        let read = normalised(read);
        if read.contains(&self.normalised) {
            return 1.0;
        }
        let distance = strsim::levenshtein(&read, &self.normalised).min(self.length);
        1.0 - distance as f64 / self.length as f64
    }
}

/// The form in which texts are compared.
pub(crate) fn normalised(text: &str) -> String {
    text.replace(' ', "").to_lowercase()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_piece_in_quotes_is_wanted() {
        for (prompt, expected) in [
            (r#"a sign that says "Open""#, "Open"),
            (r#""Stop" on a red sign"#, "Stop"),
            (r#"a cup with "Hello World" and a box with "Bye""#, "Hello World"),
            ("a sign that says “Grüße”", "Grüße"),
            // Flow-GRPO sees the straight marks alone, so they decide wherever there are some.
            (r#"“Menu” above "Tea""#, "Tea"),
            ("it's 'single' and “double”", "double"),
        ] {
            assert_eq!(quoted(prompt), Ok(expected), "{prompt}");
        }
    }

    #[test]
    fn prompts_that_want_nothing_are_refused() {
        for (prompt, expected) in [
            ("", NoWantedText::NoQuotes),
            ("a cat", NoWantedText::NoQuotes),
            ("a sign that says 'Open'", NoWantedText::NoQuotes),
            ("only a closing mark”", NoWantedText::NoQuotes),
            (r#"a sign that says "Open"#, NoWantedText::Unclosed),
            ("a sign that says “Open", NoWantedText::Unclosed),
            (r#"“Open" with marks that do not pair"#, NoWantedText::Unclosed),
            (r#"a sign that says """#, NoWantedText::Empty),
            (r#"a sign that says "  " and "Open""#, NoWantedText::Empty),
            ("a sign that says “”", NoWantedText::Empty),
        ] {
            assert_eq!(quoted(prompt), Err(expected), "{prompt}");
        }
    }

    #[track_caller]
    fn check(wanted: &str, read: &str, expected: f64) {
        let wanted = Wanted::of(&format!("\"{wanted}\"")).expect("a text");
        let found = wanted.accuracy(read);
        assert!((found - expected).abs() < 1e-15, "{found}, expected {expected}");
    }

    #[test]
    fn accuracy_by_hand() {
        check("Open", "open", 1.0);
        check("Hello World", "HELLOWORLD", 1.0);
        check("Open", "we are o p e n now", 1.0);
        check("Open", "", 0.0);
        // One letter of four is another.
        check("Open", "Oven", 0.75);
        // kitten to sitting: two substitutions and an insertion, of six.
        check("kitten", "sitting", 0.5);
        // Nine letters too many (and none of the wanted) are more than the four wanted ones: cut at four.
        check("Open", "xyxyxyxyxyxyx", 0.0);
        // Letters before and after cost nothing only if the whole text is there: here 7 insertions and one missing, cut.
        check("Open", "xxxopenaaa", 1.0);
        check("Open", "xxxopeaaaa", 0.0);
    }

    #[test]
    fn lengths_are_in_characters() {
        // One of five characters, of which two take two bytes each.
        check("Grüße", "grüse", 0.8);
        check("½₂", "½2", 0.5);
    }

    #[test]
    fn other_white_space_is_a_character() {
        check("a b", "a\tb", 0.5);
    }

    proptest! {
        #[test]
        fn accuracy_is_a_fraction_and_whole_for_the_text_itself(wanted in "[^\"]{1,12}", read in ".{0,12}") {
            let Ok(text) = Wanted::of(&format!("\"{wanted}\"")) else {
                prop_assert!(normalised(&wanted).is_empty());
                return Ok(());
            };
            prop_assert!((0.0..=1.0).contains(&text.accuracy(&read)));
            prop_assert_eq!(text.accuracy(&wanted), 1.0);
            let inside = format!("{read}{wanted}{read}");
            // Not so for every text: lower case depends on what stands around a capital sigma.
            if !inside.contains('Σ') {
                prop_assert_eq!(text.accuracy(&inside), 1.0);
            }
        }
    }
}
