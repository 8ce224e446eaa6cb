//! The machine instructions of a cubin, by NVIDIA's disassembler. Only tests and the workbench use them.

use super::libraries::{self, Variable};
use crate::error::Error;
use crate::trust;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the disassembler.
const VARIABLE: &str = "COUNTERFLOW_NVDISASM";

/// The architecture of all our machine code, in the disassembler's words.
const ARCHITECTURE: &str = "SM90a";

/// Bytes of an instruction.
const INSTRUCTION: usize = 16;

/// The instructions of a cubin, in order.
///
/// ```
/// use counterflow::jit::sass::Sass;
///
/// let sass = Sass::parse("/*0000*/ @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8] ;\n/*0010*/ EXIT ;");
/// assert_eq!(Sass::name(&sass.instructions[0]), "HGMMA.64x256x16.F32.BF16");
/// assert_eq!((sass.count("HGMMA"), sass.count("LDL")), (1, 0));
/// ```
///
/// With NVIDIA's disassembler:
///
/// ```no_run
/// # use counterflow::jit::{Compiler, Source, Target, sass::Sass};
/// let kernel = Compiler::find()?.compile(&Source::new("nothing", "__global__ void nothing() {}"), Target::Sm90a)?;
/// println!("{} instructions", Sass::of(kernel.cubin())?.instructions.len());
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sass {
    /// One instruction each: predicate, name and operands, without its address.
    pub instructions: Vec<String>,
}

impl Sass {
    /// Disassembles.
    ///
    /// # Errors
    /// [`Error::Toolkit`] if there is no disassembler, or it fails.
    pub fn of(cubin: &[u8]) -> Result<Sass, Error> {
        // Its analysis of branches names no instruction, and takes a third of the time.
        Ok(Sass::parse(&disassemble(&["-c", "-ndf"], cubin)?))
    }

    /// Disassembles all of them at once: the disassembler takes half a second to start and a few milliseconds for a kernel.
    /// Instructions are those of [`Sass::of`], but for operands that are labels and symbols: here they are numbers.
    ///
    /// ```no_run
    /// # use counterflow::jit::{Compiled, sass::Sass};
    /// fn count(kernels: &[Compiled]) -> Result<(), counterflow::Error> {
    ///     let cubins: Vec<&[u8]> = kernels.iter().map(Compiled::cubin).collect();
    ///     Sass::of_all(&cubins)?.iter().for_each(|sass| println!("{} instructions", sass.instructions.len()));
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Toolkit`] if there is no disassembler, or it fails.
    pub fn of_all(cubins: &[&[u8]]) -> Result<Vec<Sass>, Error> {
        let codes: Vec<Vec<u8>> = cubins
            .iter()
            .map(|cubin| code(cubin))
            .collect::<Result<_, _>>()?;
        let together = codes.concat();
        let text = match together.is_empty() {
            true => String::new(),
            false => disassemble(&["-ndf", "-b", ARCHITECTURE], &together)?,
        };
        let mut all = Sass::parse(&text).instructions.into_iter();
        let each = codes.iter().map(|code| Sass {
            instructions: all.by_ref().take(code.len() / INSTRUCTION).collect(),
        });
        let each: Vec<Sass> = each.collect();
        let whole =
            |(sass, code): (&Sass, &Vec<u8>)| sass.instructions.len() * INSTRUCTION == code.len();
        match each.iter().zip(&codes).all(whole) && all.next().is_none() {
            true => Ok(each),
            false => Err(Error::Toolkit {
                what: "nvdisasm gave another number of instructions than the cubins have".into(),
                help: format!(
                    "{VARIABLE} may name another nvdisasm; `.ci/cuda.sh` fetches one into .cuda/"
                ),
            }),
        }
    }

    /// From the disassembler's text: a line `/*0010*/  @P0 NAME operands ;` is an instruction.
    pub fn parse(text: &str) -> Sass {
        let instructions = text
            .lines()
            .filter_map(|line| {
                let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
                let address =
                    address.len() >= 4 && address.bytes().all(|byte| byte.is_ascii_hexdigit());
                let rest = rest.split(';').next()?.trim();
                (address && !rest.is_empty()).then(|| rest.to_owned())
            })
            .collect();
        Sass { instructions }
    }

    /// An instruction's name with its dotted parts: `HGMMA.64x256x16.F32.BF16`.
    pub fn name(instruction: &str) -> &str {
        let mut words = instruction.split_whitespace();
        words.find(|word| !word.starts_with('@')).unwrap_or("")
    }

    /// Number of instructions with that name, whatever dotted parts follow.
    pub fn count(&self, name: &str) -> usize {
        let same = |instruction: &&String| {
            Sass::name(instruction)
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.instructions.iter().filter(same).count()
    }
}

/// Machine code of a cubin's kernels, one after the other.
fn code(cubin: &[u8]) -> Result<Vec<u8>, Error> {
    let kernels = || {
        let file: ElfFile64<'_> = ElfFile64::parse(cubin)?;
        let named = |name: object::Result<&str>| name.is_ok_and(|name| name.starts_with(".text."));
        let kernels = file.sections().filter(|section| named(section.name()));
        let kernels: object::Result<Vec<&[u8]>> = kernels.map(|kernel| kernel.data()).collect();
        kernels.map(|kernels| kernels.concat())
    };
    kernels().map_err(|error| Error::Toolkit {
        what: format!("a cubin cannot be read: {error}"),
        help: "compile it again: `Compiler::compile` gives whole ones".into(),
    })
}

/// Text that the disassembler prints of a file of these bytes.
fn disassemble(options: &[&str], bytes: &[u8]) -> Result<String, Error> {
    let tool = tool()?;
    let told = unnamed(bytes)
        .and_then(|file| Command::new(&tool).args(options).arg(path(&file)).output())
        .map_err(|source| Error::File {
            path: tool.clone(),
            source,
        })?;
    if !told.status.success() {
        return Err(Error::Toolkit {
            what: format!(
                "{}: {}",
                tool.display(),
                String::from_utf8_lossy(&told.stderr).trim()
            ),
            help: format!(
                "{VARIABLE} may name another nvdisasm; `.ci/cuda.sh` fetches one into .cuda/"
            ),
        });
    }
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}

/// A file in memory, so that nothing stays behind.
fn unnamed(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("kernel.cubin", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// The path by which a process that this one starts finds it.
fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// The disassembler: named, the program's or the user's own, in a toolkit, or on the path.
fn tool() -> Result<PathBuf, Error> {
    find(&libraries::of_process, &libraries::program())
}

fn find(variable: Variable<'_>, program: &Path) -> Result<PathBuf, Error> {
    let missing = |what: String| Error::Toolkit {
        what,
        help: format!(
            "in counterflow's checkout, `.ci/cuda.sh` puts it into .cuda/; or set {VARIABLE} to the file"
        ),
    };
    if let Some(named) = variable(VARIABLE) {
        return trust::file(Path::new(&named))
            .map_err(|why| missing(format!("{VARIABLE} names {}: {why}", named.display())));
    }
    let mut places: Vec<PathBuf> = libraries::own(variable, program)
        .iter()
        .map(|dir| dir.join("bin"))
        .collect();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        places.extend(variable(name).map(|root| Path::new(&root).join("bin")));
    }
    places.push("/usr/local/cuda/bin".into());
    let path = variable("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&path));
    let files = places
        .into_iter()
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("nvdisasm"));
    libraries::first(files)
        .map_err(|why| missing(format!("nvdisasm: {why}")))?
        .ok_or_else(|| missing("nvdisasm is in no .cuda/, toolkit or folder of PATH".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disassembler_that_others_may_write_is_not_run() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("counterflow-nvdisasm-{}", std::process::id()));
        let bin = dir.join(".cuda/nvidia/cu13/bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        let file = bin.join("nvdisasm");
        std::fs::write(&file, "").expect("a file");
        let mode = |mode| {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("set");
        };
        let named = |name: &str| (name == VARIABLE).then(|| file.clone().into_os_string());
        mode(0o755);
        assert_eq!(find(&|_| None, &dir).expect("found"), file);
        assert!(
            find(&named, Path::new("/"))
                .expect("found")
                .ends_with("nvdisasm")
        );
        mode(0o777);
        let told = find(&named, &dir).expect_err("refused").to_string();
        assert!(told.contains("others may write it"), "{told}");
        let passed = find(&|_| None, &dir).map(|found| found.starts_with(&dir));
        assert!(!passed.unwrap_or(false), "a toolkit's, or none");
        std::fs::remove_dir_all(dir).expect("gone");
    }

    /// A relative folder of `PATH` begins where the program is started, which anybody may have chosen.
    #[test]
    fn a_relative_folder_of_the_path_is_not_searched() {
        use std::os::unix::fs::PermissionsExt;
        let own = std::env::temp_dir().join(format!("counterflow-path-{}", std::process::id()));
        std::fs::create_dir_all(&own).expect("a folder");
        let file = own.join("nvdisasm");
        std::fs::write(&file, "").expect("a file");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("set");
        let here = std::env::current_dir().expect("a folder");
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(own.strip_prefix("/").expect("an absolute path"));
        assert!(relative.join("nvdisasm").exists(), "{}", relative.display());
        let found = |path: &Path| {
            let variable = |name: &str| (name == "PATH").then(|| path.as_os_str().to_owned());
            find(&variable, Path::new("/")).ok()
        };
        assert_ne!(found(&relative), Some(relative.join("nvdisasm")));
        let known = found(&relative);
        // One of the system comes first, where it has one.
        assert_eq!(found(&own), known.or(Some(file)));
        std::fs::remove_dir_all(own).expect("gone");
    }

    #[test]
    fn a_file_in_memory_has_a_path_and_leaves_nothing() {
        let file = unnamed(b"text").expect("made");
        let told = Command::new("cat").arg(path(&file)).output().expect("run");
        assert_eq!(told.stdout, b"text");
        let path = path(&file);
        drop(file);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn instructions_are_read_without_addresses_and_encodings() {
        let text = "\t.section x\n        /*0000*/                   LDC R1, c[0x0][0x28] ;  /* 0x00 */\n .L_x_0:\n        /*0010*/              @!P0 BRA.U.ANY `(.L_x_0) ;\n  /* 0x000fc8 */\n";
        let sass = Sass::parse(text);
        assert_eq!(
            sass.instructions,
            ["LDC R1, c[0x0][0x28]", "@!P0 BRA.U.ANY `(.L_x_0)"]
        );
        assert_eq!(
            (
                sass.count("BRA"),
                sass.count("BRA.U.ANY"),
                sass.count("LD"),
                sass.count("LDC")
            ),
            (1, 1, 0, 1)
        );
    }
}
