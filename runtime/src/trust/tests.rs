//! Paths that others may change, one part at a time.

use super::*;
use rustix::fs::{Gid, Uid, chown};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

const MOST: u64 = 100;

/// `shared/own/file`, and the test's folder.
fn tree(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("counterflow-trust-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("shared/own")).expect("folders");
    fs::write(dir.join("shared/own/file"), "text").expect("a file");
    dir
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
}

fn told(user: User, path: &Path) -> String {
    let refused = |error: io::Error| {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    };
    let (by_file, by_open) = (user.file(path), user.open(path, MOST));
    let told = refused(by_file.expect_err("refused"));
    assert_eq!(refused(by_open.expect_err("refused")), told);
    told
}

#[test]
fn whoever_may_write_a_file_or_a_folder_above_it_decides_whether_it_counts() {
    let dir = tree("write");
    let file = dir.join("shared/own/file");
    assert_eq!(
        User::own().file(&file).expect("trusted"),
        fs::canonicalize(&file).expect("there")
    );
    assert_eq!(read(&file, MOST).expect("read"), b"text");
    for part in [&dir, &dir.join("shared"), &dir.join("shared/own"), &file] {
        let before = fs::metadata(part).expect("there").permissions();
        mode(part, before.mode() | 0o002);
        let told = told(User::own(), &file);
        assert!(told.contains("others may write it"), "{told}");
        assert!(
            told.contains(&format!("{} is not", part.display())),
            "{told}"
        );
        fs::set_permissions(part, before).expect("set");
    }
    // Sticky: others may add entries, and replace none.
    mode(&dir.join("shared"), 0o1777);
    assert!(User::own().file(&file).is_ok() && read(&file, MOST).is_ok());
    assert!(made(&dir.join("shared/own/deep/er")).is_ok());
    assert!(above(&dir.join("shared")).is_ok());
    mode(&dir.join("shared/own"), 0o1777);
    assert!(told(User::own(), &file).contains("others may write it"));
    assert!(made(&dir.join("shared/own")).is_err());
    assert!(takes(&dir.join("shared/own")).is_err());
    mode(&dir.join("shared/own"), 0o755);
    assert!(takes(&dir.join("shared/own")).is_ok() && takes(&dir.join("shared/own/new")).is_ok());
    fs::remove_dir_all(dir).expect("gone");
}

#[test]
fn what_belongs_to_another_user_does_not_count() {
    let dir = tree("owner");
    let file = dir.join("shared/own/file");
    let own = rustix::process::geteuid().as_raw();
    if own == 0 {
        let other = |path: &Path, to: u32| {
            chown(path, Some(Uid::from_raw(to)), Some(Gid::from_raw(to))).expect("root may");
        };
        for part in [&dir.join("shared"), &dir.join("shared/own"), &file] {
            other(part, 12345);
            let told = told(User::own(), &file);
            assert!(told.contains("it belongs to user 12345"), "{told}");
            assert!(made(&dir.join("shared/own")).is_err() || *part == file);
            other(part, 0);
        }
        // What root has is trusted by all.
        let whole = User(12345).file(&file).expect("trusted");
        assert!(whole.ends_with("shared/own/file"));
    } else {
        let told = told(User(own + 1), &file);
        assert!(
            told.contains(&format!("it belongs to user {own}")),
            "{told}"
        );
    }
    fs::remove_dir_all(dir).expect("gone");
}

#[test]
fn links_count_as_the_folders_that_they_lead_through() {
    let dir = tree("links");
    let (open, own) = (dir.join("open"), dir.join("shared/own"));
    fs::create_dir(&open).expect("a folder");
    mode(&open, 0o777);
    fs::write(open.join("file"), "theirs").expect("a file");
    symlink(&own, dir.join("good")).expect("a link");
    symlink("../../open", own.join("bad")).expect("a link");
    symlink("loop", dir.join("loop")).expect("a link");
    symlink("file", own.join("name")).expect("a link");
    assert_eq!(
        User::own().file(&dir.join("good/file")).expect("trusted"),
        fs::canonicalize(own.join("file")).expect("there")
    );
    assert!(told(User::own(), &own.join("bad/file")).contains("others may write it"));
    assert!(User::own().file(&own.join("../own/name")).is_ok());
    let told = read(&own.join("name"), MOST)
        .expect_err("a link")
        .to_string();
    assert!(told.ends_with("it is a link"), "{told}");
    assert!(User::own().file(&dir.join("loop/file")).is_err());
    // A folder that is not there is made only below what is trusted.
    assert_eq!(
        made(&open.join("new")).expect_err("refused").kind(),
        ErrorKind::PermissionDenied
    );
    assert!(!open.join("new").exists());
    fs::remove_dir_all(dir).expect("gone");
}

#[test]
fn what_is_no_file_or_too_long_is_refused_without_waiting() {
    let dir = tree("odd");
    let path = dir.join("odd");
    let refused = |wanted: &str| {
        let told = read(&path, MOST).expect_err("refused").to_string();
        assert!(told.contains(wanted), "{told}");
    };
    rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).expect("a pipe");
    refused("it is no file");
    fs::remove_file(&path).expect("gone");
    let socket = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    refused("it is no file");
    drop(socket);
    fs::remove_file(&path).expect("gone");
    fs::create_dir(&path).expect("a folder");
    refused("it is no file");
    fs::remove_dir(&path).expect("gone");
    fs::write(&path, [7; MOST as usize]).expect("written");
    assert_eq!(read(&path, MOST).expect("read").len() as u64, MOST);
    fs::File::create(&path)
        .and_then(|file| file.set_len(3 << 30))
        .expect("set");
    refused("3221225472 bytes");
    assert_eq!(
        read(&dir.join("none"), MOST).expect_err("none").kind(),
        ErrorKind::NotFound
    );
    fs::remove_dir_all(dir).expect("gone");
}
