//! From a recogniser's probabilities to text: connectionist temporal classification (Graves et al. 2006), decoded
//! greedily.
//!
//! The network slides over the line and gives, at every step, a probability to each class: class 0 is the blank, which
//! stands for "no new character here", the next ones are the characters in the order of the model's list, and the last
//! one is the space. Greedy decoding takes the likeliest class of every step (the first one if several are equal),
//! makes one of equal neighbours, and drops the blanks. So a double letter needs a blank in between.

/// The characters that a recogniser knows, by class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alphabet {
    /// The characters of class 1 and up; the blank has none.
    characters: Vec<String>,
}

/// What stood on a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The text, spaces and case as they were read.
    pub text: String,
    /// Mean probability of its characters, 0 to 1; 0 if there are none.
    pub confidence: f64,
}

impl Alphabet {
    /// The alphabet of a list with one character a line. Lines may end in CR LF, and the last one without any.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        let mut characters: Vec<String> = list.lines().map(str::to_owned).collect();
        characters.push(" ".to_owned());
        Self { characters }
    }

    /// How many classes a recogniser of this alphabet has: the listed characters, the blank and the space.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.characters.len() + 1
    }

    /// The characters, the space included.
    pub fn characters(&self) -> impl Iterator<Item = &str> {
        self.characters.iter().map(String::as_str)
    }

    /// The text of a line, from probabilities `[steps, classes]`.
    #[must_use]
    pub fn decode(&self, probabilities: &[f32]) -> Reading {
        let mut text = String::new();
        let mut kept = Vec::new();
        let mut before = BLANK;
        for (class, probability) in probabilities.chunks_exact(self.classes()).map(likeliest) {
            if class != before && class != BLANK {
                text.push_str(&self.characters[class - 1]);
                kept.push(f64::from(probability));
            }
            before = class;
        }
        let confidence = kept.iter().sum::<f64>() / kept.len().max(1) as f64;
        Reading { text, confidence }
    }
}

const BLANK: usize = 0;

/// The first of the greatest values, with its place.
pub(crate) fn likeliest(probabilities: &[f32]) -> (usize, f32) {
    let first = (0, f32::NEG_INFINITY);
    let values = probabilities.iter().copied().enumerate();
    values.fold(first, |best, next| if next.1 > best.1 { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes steps given as the likeliest class and its probability, over the classes blank, `l`, `é`, space.
    #[track_caller]
    fn check(steps: &[(usize, f32)], text: &str, confidence: f64) {
        let alphabet = Alphabet::parse("l\né\n");
        assert_eq!(alphabet.classes(), 4);
        let rows = steps.iter().flat_map(|(class, probability)| {
            let mut row = [(1.0 - probability) / 3.0; 4];
            row[*class] = *probability;
            row
        });
        let reading = alphabet.decode(&rows.collect::<Vec<f32>>());
        assert_eq!(reading.text, text);
        assert!(
            (reading.confidence - confidence).abs() < 1e-7,
            "{}, expected {confidence}",
            reading.confidence
        );
    }

    #[test]
    fn equal_neighbours_are_one_character() {
        check(&[(1, 0.5), (1, 0.9), (2, 0.75)], "lé", 0.625);
    }

    #[test]
    fn a_blank_separates_double_letters() {
        check(&[(1, 0.5), (0, 0.9), (1, 1.0)], "ll", 0.75);
    }

    #[test]
    fn the_last_class_is_the_space() {
        check(
            &[(0, 0.9), (1, 0.5), (3, 0.5), (3, 0.5), (1, 0.5), (0, 0.9)],
            "l l",
            0.5,
        );
    }

    #[test]
    fn a_line_of_blanks_is_empty() {
        check(&[(0, 0.9), (0, 0.8)], "", 0.0);
        check(&[], "", 0.0);
    }

    #[test]
    fn the_first_of_equal_classes_wins() {
        assert_eq!(likeliest(&[0.25, 0.5, 0.5]), (1, 0.5));
        // All four classes at one quarter: the blank.
        check(&[(3, 0.25)], "", 0.0);
    }

    #[test]
    fn lists_may_come_from_any_system() {
        assert_eq!(Alphabet::parse("l\r\né"), Alphabet::parse("l\né\n"));
        let alphabet = Alphabet::parse("a\nb");
        assert_eq!(alphabet.characters().collect::<Vec<_>>(), ["a", "b", " "]);
    }
}
