//! Who turns the feature `multicast` on: no manifest, no script, no step and no program of ours.

use super::{files, root, short, text};
use std::fs;
use std::path::PathBuf;

const FEATURE: &str = "multicast";

/// Every list under `features`, with the keys that lead there.
fn features(value: &toml::Value, at: &str, found: &mut Vec<(String, Vec<String>)>) {
    let Some(table) = value.as_table() else {
        for value in value.as_array().into_iter().flatten() {
            features(value, at, found);
        }
        return;
    };
    for (key, value) in table {
        let here = format!("{at}.{key}");
        let list = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(toml::Value::as_str);
        let list: Vec<String> = list.map(str::to_owned).collect();
        let every = (key == "all-features" && value.as_bool() == Some(true))
            .then(|| vec![FEATURE.to_owned()]);
        found.push((here.clone(), every.unwrap_or(list)));
        features(value, &here, found);
    }
}

/// What of a manifest turns the feature on.
fn turned_on(manifest: &str) -> Vec<String> {
    let parsed: toml::Table = manifest.parse().expect("a manifest");
    let mut lists = Vec::new();
    features(&toml::Value::Table(parsed), "", &mut lists);
    let on = lists.into_iter().filter(|(at, list)| {
        let is_it = |name: &String| name.rsplit(['/', '?']).next() == Some(FEATURE);
        // The feature itself hands on to the crate that has it.
        at != ".features.multicast" && !at.ends_with(".keywords") && list.iter().any(is_it)
    });
    on.map(|(at, _)| at).collect()
}

/// Whether a text asks for the feature as rustc has it, `feature = "multicast"`: in code, in flags, or in what a build script says.
fn names_cfg(text: &str) -> bool {
    text.split("feature").skip(1).any(|rest| {
        let value = rest.trim_start_matches(|c: char| c.is_whitespace() || "=\"'\\".contains(c));
        let between = &rest[..rest.len() - value.len()];
        between.contains('=')
            && value.strip_prefix(FEATURE).is_some_and(|end| {
                !end.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            })
    })
}

/// A text without what stands in `cfg(..)`: that asks for the feature and turns nothing on. Which files may is looked at by itself.
fn without_conditions(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    loop {
        let words = ["cfg(", "cfg!(", "cfg_attr("].iter();
        let begins = words.filter_map(|word| Some(rest.find(word)? + word.len()));
        let condition = begins.min().and_then(|begin| {
            let mut depth = 1;
            let end = rest[begin..].find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            });
            Some((begin, begin + end?))
        });
        let Some((begin, end)) = condition else {
            return kept + rest;
        };
        kept.push_str(&rest[..begin]);
        rest = &rest[end..];
    }
}

/// What of a script, or of a program that starts cargo, turns the feature on: also over several lines, or by a variable.
fn turns_on(script: &str) -> Vec<String> {
    let lines = script.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with('#') && !line.starts_with("//")
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-$".contains(c);
    let words: Vec<&str> = text
        .split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .collect();
    // A key of YAML is followed by its value; a name in a program is followed by anything.
    let is_key = script
        .lines()
        .any(|line| line.trim_start().starts_with("features:"));
    let flag = |word: &str| match word {
        "--features" | "-F" => Some(String::new()),
        "features" if is_key => Some(String::new()),
        _ => word.strip_prefix("-F").map(str::to_owned),
    };
    let mut found = Vec::new();
    if names_cfg(&without_conditions(&text)) {
        found.push(format!("--cfg feature={FEATURE}"));
    }
    let explicit = words.contains(&"--only-explicit-features");
    for (at, word) in words.iter().enumerate() {
        // By itself it turns on every feature that is not called `unstable`.
        let heuristic = *word == "semver-checks" && !explicit;
        if word.ends_with("all-features") || heuristic {
            found.push((*word).to_owned());
            continue;
        }
        let Some(own) = flag(word) else {
            continue;
        };
        // What it is given: up to the next option or command.
        let given = words[at + 1..].iter().take(8);
        let given = given.take_while(|word| {
            !word.starts_with("--") && **word != "cargo" && flag(word).is_none()
        });
        let mut values = std::iter::once(&own[..]).chain(given.copied());
        let by_variable =
            word.starts_with('-') && words.get(at + 1).is_some_and(|next| next.starts_with('$'));
        if by_variable || values.any(|value| value == FEATURE) {
            found.push(words[at..words.len().min(at + 4)].join(" "));
        }
    }
    found
}

/// What runs or builds something of ours.
fn scripts() -> Vec<PathBuf> {
    let mut all = files("", &[".sh", ".py", ".yml", ".yaml", "Makefile", "justfile"]);
    for folder in [".ci", ".github/workflows", ".cargo"] {
        let entries = fs::read_dir(root().join(folder))
            .into_iter()
            .flatten()
            .flatten();
        all.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.is_file()),
        );
    }
    all
}

#[test]
fn nothing_of_ours_turns_the_feature_on() {
    let manifests = files("", &["Cargo.toml"]);
    assert!(manifests.len() >= 12, "{manifests:?}");
    for path in &manifests {
        assert_eq!(turned_on(&text(path)), [""; 0], "{}", short(path));
    }
    for manifest in ["Cargo.toml", "runtime/Cargo.toml"] {
        let parsed: toml::Table = text(&root().join(manifest)).parse().expect("a manifest");
        assert!(parsed["features"].get(FEATURE).is_some(), "{manifest}");
    }
    let scripts = scripts();
    assert!(
        scripts.iter().any(|path| path.ends_with(".ci/run")),
        "{scripts:?}"
    );
    for path in &scripts {
        assert_eq!(turns_on(&text(path)), [""; 0], "{}", short(path));
    }
    // Tests start cargo, too.
    let this = root().join("tests/layering/features.rs");
    let beside = root().join("tests/layering/multicast.rs");
    let sources = files("", &[".rs"]);
    let sources = sources
        .iter()
        .filter(|path| ![&this, &beside].contains(path));
    for path in sources {
        let code = text(path);
        assert_eq!(turns_on(&code), [""; 0], "{}", short(path));
        let behind = names_cfg(&code);
        let own = [
            "runtime/src/cuda/",
            "runtime/src/driver/multicast.rs",
            "runtime/src/multicast.rs",
        ];
        assert!(
            !behind || own.iter().any(|own| short(path).starts_with(own)),
            "{}",
            short(path)
        );
    }
}

#[test]
fn the_check_sees_who_turns_the_feature_on() {
    for manifest in [
        "[features]\ndefault = ['multicast']\n",
        "[features]\nfast = ['counterflow-runtime/multicast']\n",
        "[dependencies]\ncounterflow = { path = '..', features = ['unstable', 'multicast'] }\n",
        "[target.'cfg(unix)'.dev-dependencies.counterflow]\nfeatures = ['multicast']\n",
        "[workspace.dependencies]\ncounterflow = { features = ['multicast'] }\n",
        "[package.metadata.docs.rs]\nall-features = true\n",
        "[[test]]\nname = 'x'\nrequired-features = ['multicast']\n",
    ] {
        assert_eq!(turned_on(manifest).len(), 1, "{manifest}");
    }
    let own = "[features]\nmulticast = ['counterflow-runtime/multicast']\n[package]\nkeywords = ['multicast']\n";
    assert_eq!(turned_on(own), [""; 0]);
    let on = |script: &str| turns_on(script).len();
    for script in [
        "cargo test --all-features\n",
        "cargo build --features unstable,multicast\n",
        "cargo run -Fmulticast\n",
        "cargo semver-checks --baseline-rev v0.1.0\n",
        "cargo run -F multicast\n",
        "cargo build --features=multicast\n",
        "cargo build --features 'unstable multicast'\n",
        "cargo build \\\n    --features \\\n    unstable,multicast \\\n    --release\n",
        "with=multicast\ncargo build --features \"$with\"\n",
        "cargo build -F ${WITH}\n",
        "- run: >-\n    cargo test\n    --features\n    multicast\n",
        "with:\n  features:\n    - unstable\n    - multicast\n",
        "with:\n  features: [unstable, multicast]\n",
        "with:\n  command: test\n  args: --all-features\n",
        "Command::new(\"cargo\").args([\"test\", \"--features\", \"multicast\"])",
        "Command::new(\"cargo\").arg(\"run\").arg(\"--features\").arg(\"unstable,multicast\")",
        "cargo([\"-Fmulticast\"])",
        "RUSTFLAGS='--cfg feature=\"multicast\"' cargo build\n",
        "export RUSTFLAGS=\"--cfg=feature=\\\"multicast\\\"\"\n",
        "[build]\nrustflags = ['--cfg', 'feature=\"multicast\"']\n",
        "fn main() { println!(\"cargo::rustc-cfg=feature=\\\"multicast\\\"\"); }",
        // Beside conditions of another sort, closed or not.
        "[target.'cfg(unix)']\nrustflags = ['--cfg', 'feature=\"multicast\"']\n",
        "#[cfg(all(unix, not(test)))]\nfn main() { println!(\"cargo::rustc-cfg=feature=\\\"multicast\\\"\"); }",
        "echo 'cfg(' && RUSTFLAGS='--cfg feature=\"multicast\"' cargo build\n",
    ] {
        assert_eq!(on(script), 1, "{script}");
    }
    // In code, too, by whichever spaces: such a file must be one of those that are named.
    for code in [
        "cfg(feature = \"multicast\")",
        "#[cfg(feature=\"multicast\")]\nmod x;",
        "#[cfg(any(unix, feature\n    = \"multicast\"))]",
    ] {
        assert!(names_cfg(code), "{code}");
    }
    for code in [
        "cfg(feature = \"multicast_of\")",
        "built with the feature `multicast`",
        "features = multicast",
        "cfg(feature = \"unstable\")",
    ] {
        assert!(!names_cfg(code), "{code}");
    }
    for script in [
        "# cargo test --features multicast\n",
        "// cargo test --features multicast\n",
        "export NCCL_NVLS_ENABLE=0\ncargo test --features unstable\n",
        "cargo semver-checks --only-explicit-features --features quantise\n",
        "cargo test --features unstable --test multicast\n",
        "cargo test --features unstable\ncargo run --example multicast\n",
        "# RUSTFLAGS='--cfg feature=\"multicast\"' cargo build\n",
        "RUSTFLAGS='--cfg feature=\"unstable\"' cargo build\n",
        "cfg(feature = \"multicast\")",
        "#[cfg(any(unix, feature = \"multicast\"))]\nmod x;\nif cfg!(feature = \"multicast\") {}",
        "#[cfg_attr(feature = \"multicast\", allow(unused))]\nmod x;",
    ] {
        assert_eq!(on(script), 0, "{script}: {:?}", turns_on(script));
    }
}
