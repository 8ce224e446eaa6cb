//! The ranks' threads: what the others are told when one of them ends early, and which error is the cause.

use crate::error::Error;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Does a rank's part. If that fails or panics, tells why before anything else happens.
pub(crate) fn telling<T>(
    part: impl FnOnce() -> Result<T, Error>,
    tell: impl FnOnce(&str),
) -> Result<T, Error> {
    // Nothing of the part is used after a panic but its message.
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(done) => {
            if let Err(error) = &done {
                tell(&error.to_string());
            }
            done
        }
        Err(panic) => {
            tell(&format!("it panicked: {}", message(panic.as_ref())));
            resume_unwind(panic)
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Results of all ranks, or the error of one that was not only told of another's.
pub(crate) fn all<T>(results: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
    let (mut done, mut told) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => done.push(value),
            Err(error @ Error::Aborted { .. }) => {
                told.get_or_insert(error);
            }
            Err(cause) => return Err(cause),
        }
    }
    told.map_or(Ok(done), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> Error {
        Error::Usage {
            what: "a length of 3".into(),
            legal: "4".into(),
        }
    }

    fn aborted() -> Error {
        Error::Aborted {
            what: "rank 1 ended early: a length of 3".into(),
            help: String::new(),
        }
    }

    #[test]
    fn who_fails_or_panics_says_why_and_who_does_not_says_nothing() {
        let mut told = Vec::new();
        assert_eq!(
            telling(|| Ok(5), |why| told.push(why.to_owned())).ok(),
            Some(5)
        );
        let failed = telling(|| Err::<(), _>(usage()), |why| told.push(why.to_owned()));
        assert_eq!(failed.expect_err("refused").kind(), "usage");
        for text in [
            || -> Result<(), Error> { panic!("no {}", "rows") },
            || panic!("none"),
        ] {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                telling(text, |why| told.push(why.to_owned()))
            }));
            assert!(panicked.is_err(), "a panic goes on");
        }
        assert_eq!(
            told,
            ["a length of 3", "it panicked: no rows", "it panicked: none"]
        );
    }

    #[test]
    fn the_cause_is_returned_and_not_what_others_were_told_of_it() {
        assert_eq!(all(vec![Ok(1), Ok(2)]).expect("fine"), [1, 2]);
        let first = all(vec![Err(aborted()), Err::<(), _>(usage()), Ok(())]);
        assert_eq!(first.expect_err("refused").kind(), "usage");
        let only = all(vec![Ok(()), Err(aborted())]);
        assert_eq!(only.expect_err("told").kind(), "aborted");
    }
}
