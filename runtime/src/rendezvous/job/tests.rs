//! Environments of launchers, written after what each documents. None of them was started for this.

use super::*;

fn job(variables: &str) -> Result<Option<Job>, Error> {
    let pairs: Vec<(&str, &str)> = variables
        .split_whitespace()
        .map(|pair| pair.split_once('=').expect("a variable"))
        .collect();
    let find = |name: &str| {
        let found = pairs.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Variables(find).job()
}

fn found(variables: &str) -> Job {
    job(variables).expect("legal").expect("a job")
}

fn refused(variables: &str) -> (&'static str, String) {
    match job(variables).expect_err("refused") {
        Error::Environment { variable, what, .. } => (variable, what),
        other => panic!("{other}"),
    }
}

const TORCHRUN: &str = "RANK=2 LOCAL_RANK=2 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 ROLE_RANK=2 ROLE_WORLD_SIZE=4 \
    MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 \
    TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=1";

const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=1 PMIX_NAMESPACE=3391553537 PMIX_RANK=1 \
    OMPI_MCA_ess_base_jobid=3391553537 OMPI_UNIVERSE_SIZE=4";

const MPICH: &str = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=9 MPI_LOCALRANKID=3 MPI_LOCALNRANKS=4";

const SLURM: &str = "SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS=7 \
    SLURM_STEP_NUM_TASKS=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=4,3 \
    SLURM_LAUNCH_NODE_IPADDR=10.1.2.3";

#[test]
fn every_launcher_says_which_rank_of_which_job_this_is() {
    assert_eq!(
        found(TORCHRUN),
        Job {
            launcher: Launcher::Torchrun,
            rank: 2,
            world: 4,
            local_rank: 2,
            local_world: 4,
            name: "none:127.0.0.1:29500:0".into(),
            address: Some("127.0.0.1".into()),
            port: None,
            secret: None,
        }
    );
    let open = found(OPEN_MPI);
    assert_eq!(
        (open.launcher, open.rank, open.world),
        (Launcher::OpenMpi, 1, 4)
    );
    assert_eq!((open.local_rank, open.local_world), (1, 4));
    assert_eq!(open.name, "3391553537");
    let mpich = found(&format!("{MPICH} UB_JOB=mine"));
    assert_eq!(
        (mpich.launcher, mpich.rank, mpich.world),
        (Launcher::Mpich, 3, 4)
    );
    assert_eq!((mpich.local_rank, mpich.local_world), (3, 4));
    assert_eq!(mpich.name, "mine");
    let slurm = found(&format!(
        "{SLURM} UB_PORT=4242 UB_SECRET_FILE=/run/me/secret"
    ));
    assert_eq!(
        (slurm.launcher, slurm.rank, slurm.world),
        (Launcher::Slurm, 5, 7)
    );
    assert_eq!((slurm.local_rank, slurm.local_world), (1, 3));
    assert_eq!(slurm.name, "4711.0");
    assert_eq!(slurm.address.as_deref(), Some("10.1.2.3"));
    assert_eq!(
        (slurm.port, slurm.secret),
        (Some(4242), Some("/run/me/secret".into()))
    );
}

#[test]
fn no_launcher_is_no_job() {
    assert_eq!(job("").expect("legal"), None);
    assert_eq!(
        job("RANK= WORLD_SIZE=4").expect("legal"),
        None,
        "empty is not set"
    );
    // The script that sbatch starts.
    assert_eq!(
        job("SLURM_JOB_ID=4711 SLURM_PROCID=0 SLURM_NTASKS=7").expect("legal"),
        None
    );
}

#[test]
fn an_mpi_inside_of_slurm_counts_its_own_ranks() {
    assert_eq!(
        found(&format!("{SLURM} {OPEN_MPI}")).launcher,
        Launcher::OpenMpi
    );
}

#[test]
fn half_an_environment_is_refused_with_the_variable() {
    let (variable, what) = refused("RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1");
    assert_eq!(variable, "WORLD_SIZE");
    assert_eq!(what, "WORLD_SIZE is not set, though RANK is");
    let (variable, what) = refused(&OPEN_MPI.replace("_RANK=1", "_RANK=one"));
    assert_eq!(variable, "OMPI_COMM_WORLD_RANK");
    assert!(what.contains("=one is no number"), "{what}");
    let (variable, what) = refused(&TORCHRUN.replace("WORLD_SIZE=4", "WORLD_SIZE=2"));
    assert_eq!(
        (variable, &what[..]),
        ("RANK", "rank 2 of 2, by what Torchrun sets")
    );
    assert_eq!(refused(MPICH).0, "UB_JOB", "MPICH does not name its job");
    assert_eq!(refused(&format!("{TORCHRUN} UB_PORT=70000")).0, "UB_PORT");
}

#[test]
fn numbers_that_no_job_has_are_refused_before_anything_is_waited_for() {
    let torchrun = |number| TORCHRUN.replace(" WORLD_SIZE=4", &format!(" WORLD_SIZE={number}"));
    let slurm = |number| SLURM.replace("NUM_TASKS=7", &format!("NUM_TASKS={number}"));
    for number in [129, 100_000_000, u32::MAX] {
        for (variables, named) in [
            (torchrun(number), "WORLD_SIZE"),
            (slurm(number), "SLURM_STEP_NUM_TASKS"),
        ] {
            // Of a larger job a program may still read its place.
            let joined = found(&variables).rendezvous(Duration::from_secs(1000));
            let Err(Error::Environment { variable, what, .. }) = joined else {
                panic!("{joined:?}");
            };
            assert_eq!(variable, named);
            assert_eq!(what, format!("{named}={number} ranks"));
        }
    }
    let local = TORCHRUN.replace("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=5");
    assert_eq!(refused(&local).0, "LOCAL_WORLD_SIZE");
    assert_eq!(refused(&torchrun(0)).0, "LOCAL_WORLD_SIZE");
    assert_eq!(refused(&format!("{TORCHRUN} UB_PORT=0")).0, "UB_PORT");
    assert_eq!(tasks_of("4(x4294967295),3(x9)", u32::MAX), None);
}

#[test]
fn slurm_lists_tasks_of_nodes() {
    let each: Vec<_> = (0..5).map(|node| tasks_of("4(x2),3,1", node)).collect();
    assert_eq!(each, [Some(4), Some(4), Some(3), Some(1), None]);
    assert_eq!(tasks_of("", 0), None);
    assert_eq!(tasks_of("4(x", 0), None);
}

#[test]
fn ranks_of_several_hosts_are_told_what_is_missing() {
    let error = found(SLURM)
        .rendezvous(Duration::from_secs(1))
        .expect_err("refused");
    let help = error.help().unwrap_or_default();
    for word in ["MASTER_ADDR", "UB_PORT", "UB_SECRET_FILE"] {
        assert!(help.contains(word), "{help}");
    }
}
