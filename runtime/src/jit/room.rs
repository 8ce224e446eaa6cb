//! Free room of a cache. Nothing is written to find out.

use super::cache::Cache;
use crate::error::Error;
use crate::trust;
use rustix::fs::{Access, access, statvfs};
use std::path::Path;

impl Cache {
    /// Bytes that are free where the cache keeps its entries, or will keep them: its folder is made on first use. A cache
    /// that is off has none.
    ///
    /// # Errors
    /// [`Error::File`] if this process can write no entry there.
    pub fn room(&self) -> Result<u64, Error> {
        match self.dir() {
            Some(dir) => room(dir),
            None => Ok(0),
        }
    }
}

fn room(dir: &Path) -> Result<u64, Error> {
    let failed = |path: &Path, source: std::io::Error| Error::File {
        path: path.into(),
        source,
    };
    trust::takes(dir).map_err(|error| failed(dir, error))?;
    // A relative path begins here.
    let there = |path: &&Path| path.as_os_str().is_empty() || path.symlink_metadata().is_ok();
    let nearest = dir.ancestors().find(there).unwrap_or(dir);
    let nearest = match nearest.as_os_str().is_empty() {
        true => Path::new("."),
        false => nearest,
    };
    let kind = nearest.metadata().map_err(|error| failed(nearest, error))?;
    if !kind.is_dir() {
        return Err(failed(nearest, std::io::ErrorKind::NotADirectory.into()));
    }
    access(nearest, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| failed(nearest, error.into()))?;
    let disk = statvfs(nearest).map_err(|error| failed(nearest, error.into()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_cache_has_room_where_its_folder_can_be_made_and_makes_none() {
        let top = std::env::temp_dir().join(format!("counterflow-room-{}", std::process::id()));
        let deep = top.join("a/b");
        assert!(Cache::at(&deep).room().expect("a temporary folder") > 0);
        assert!(!top.exists(), "nothing is made");
        assert!(Cache::at("kernels").room().expect("here") > 0);
        assert_eq!(Cache::off().room().expect("none"), 0);
        fs::write(&top, "not a folder").expect("written");
        let told = Cache::at(&deep).room().expect_err("below a file");
        assert!(told.to_string().contains("counterflow-room"), "{told}");
        let _ = fs::remove_file(&top);
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("nowhere", &top).expect("a link");
            let told = Cache::at(&top).room().expect_err("a link to nothing");
            assert_eq!(told.kind(), "file");
            let _ = fs::remove_file(&top);
        }
    }

    #[test]
    fn a_file_system_that_cannot_be_written_has_no_room() {
        // The kernel's own file system takes no folder from anybody.
        let told = Cache::at("/proc/counterflow/kernels").room();
        // Root may write to the folder by its mode: then the disk there is of no bytes.
        assert!(told.is_err() || told.is_ok_and(|free| free == 0));
    }
}
