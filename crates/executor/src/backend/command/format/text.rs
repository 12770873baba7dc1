//! Plain text: all that a program writes is its answer, and its exit is its end.

use super::Dialect;
use crate::backend::command::transcript::Transcript;
use crate::lines::Line;

#[derive(Debug)]
pub(super) struct Text;

impl Dialect for Text {
    fn read(&mut self, line: &Line, transcript: &mut Transcript) {
        if line.ended {
            transcript.say(&format!("{}\n", line.text), None);
        } else {
            transcript.say(&line.text, None);
        }
    }
}
