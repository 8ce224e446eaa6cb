//! Findings of a check.

/// Grade of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Grade {
    Good,
    /// Worth knowing. It does not change the exit code.
    Note,
    /// Kernels do not run, or run slower than they could.
    Bad,
}

impl Grade {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Bad => "bad",
        }
    }
}

/// One line of the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) grade: Grade,
    pub(super) says: String,
    /// Advice. Whatever is bad has some.
    pub(super) help: Option<String>,
}

impl Finding {
    pub(super) fn good(says: impl Into<String>) -> Finding {
        Finding {
            grade: Grade::Good,
            says: says.into(),
            help: None,
        }
    }

    pub(super) fn note(says: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding {
            grade: Grade::Note,
            says: says.into(),
            help: Some(help.into()),
        }
    }

    pub(super) fn bad(says: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding {
            grade: Grade::Bad,
            says: says.into(),
            help: Some(help.into()),
        }
    }
}

/// Findings about single GPUs, each with the GPU's name. GPUs of which the same is found share a line.
pub(super) fn together(each: impl IntoIterator<Item = (String, Finding)>) -> Vec<Finding> {
    let mut alike: Vec<(Vec<String>, Finding)> = Vec::new();
    for (gpu, finding) in each {
        match alike.iter_mut().find(|(_, known)| *known == finding) {
            Some((gpus, _)) => gpus.push(gpu),
            None => alike.push((vec![gpu], finding)),
        }
    }
    let line = |(gpus, finding): (Vec<String>, Finding)| Finding {
        says: format!("GPU {}: {}", listed(&gpus), finding.says),
        ..finding
    };
    alike.into_iter().map(line).collect()
}

/// `0`, `0, 2`, or `0 to 3` for three numbers in a row and more.
fn listed(gpus: &[String]) -> String {
    let numbers: Option<Vec<u32>> = gpus.iter().map(|gpu| gpu.parse().ok()).collect();
    match numbers.as_deref() {
        Some([first, .., last]) if gpus.len() > 2 && *last - *first == gpus.len() as u32 - 1 => {
            format!("{first} to {last}")
        }
        _ => gpus.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_which_the_same_is_found_share_a_line() {
        let each = |limits: &[u32]| {
            let found = limits.iter().enumerate();
            let found =
                found.map(|(gpu, watts)| (gpu.to_string(), Finding::good(format!("{watts} W"))));
            let lines = together(found).into_iter().map(|line| line.says);
            lines.collect::<Vec<_>>()
        };
        assert_eq!(each(&[700]), ["GPU 0: 700 W"]);
        assert_eq!(each(&[700, 700]), ["GPU 0, 1: 700 W"]);
        assert_eq!(each(&[700; 4]), ["GPU 0 to 3: 700 W"]);
        assert_eq!(
            each(&[700, 500, 700, 700]),
            ["GPU 0, 2, 3: 700 W", "GPU 1: 500 W"]
        );
    }
}
