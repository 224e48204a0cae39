//! Tests the memory of a sum in addition to the caller's buffer. It must be a few segments, however long the
//! buffer, in shared memory and by messages, even if some ranks lag behind.

use std::thread;
use std::time::{Duration, Instant};

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::progress::process::mpi_engine;
use ringpull_base::config::{self, Config};
use ringpull_base::{DType, Result, Tensor};
use ringpull_processes::{Processes, own_path};

/// The variable that makes a process of this binary a rank.
const CHILD: &str = "RINGPULL_MEMORY_CHILD";
/// The variable with the bytes that a sum may take.
const MOST_BYTES: &str = "RINGPULL_MEMORY_MOST_BYTES";
/// The variable of a rank that competes with itself for the processors.
const BUSY: &str = "RINGPULL_MEMORY_BUSY";
const LEN_BYTES: usize = 64 << 20;
/// A tenth of the buffer, and a multiple of all segments in flight.
const FEW_BYTES: u64 = 6 << 20;
/// The bytes that a neighbour may send before they are wanted (10 MiB), and buffers and the library's own
/// lists. Without a limit some rank took 21 to 57 MB.
const LAGGING_BYTES: u64 = 16 << 20;

#[test]
#[ignore = "one process of a job, which the other tests start"]
fn one_process_of_a_job() {
    if config::text(CHILD).is_none() {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    }
    if config::text(BUSY).is_some() {
        thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let most: u64 = config::text(MOST_BYTES).unwrap().parse().unwrap();
    let config = Config::from_env().unwrap();
    let engine = mpi_engine(&config, Some(config.segment_bytes)).unwrap();
    let memory = [Tensor::zeros(DType::F32, &[16]), Tensor::zeros(DType::F32, &[LEN_BYTES / 4])];
    let work = move |comm: &mut Communicator, stamp: u32| -> Result<u64> {
        comm.allreduce_tensor(comm.choice(), &memory[0], stamp)?;
        memory[1].write().as_mut_slice::<f32>().fill(1.0);
        let before = MemoryUsage::now();
        for _ in 0..3 {
            comm.allreduce_tensor(comm.choice(), &memory[1], stamp)?;
        }
        let after = MemoryUsage::now();
        let sum = (comm.size() as f32).powi(3);
        assert!(memory[1].read()?.bytes().chunks_exact(4).all(|bytes| bytes == sum.to_le_bytes()));
        // The neighbours' buffers are mapped here as well, but are no memory of this rank's.
        Ok((after.peak - before.present).saturating_sub(after.shared - before.shared))
    };
    let extra = engine.collective("measure memory", work).unwrap();
    println!("rank {} took {extra} bytes", engine.rank());
    assert!(extra <= most, "rank {} took {extra} bytes beyond its buffer", engine.rank());
}

/// Bytes of this process in memory.
struct MemoryUsage {
    peak: u64,
    present: u64,
    shared: u64,
}

impl MemoryUsage {
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
        };
        MemoryUsage { peak: field("VmHWM"), present: field("VmRSS"), shared: field("RssShmem") }
    }
}

fn run(shared_memory: &str, most_bytes: u64, variables: &[(&str, &str)]) {
    let mut processes = Processes::new();
    let mut command = processes.mpirun(3, own_path());
    command
        .args(["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env(MOST_BYTES, most_bytes.to_string())
        .env("RINGPULL_SHARED_MEMORY", shared_memory)
        .envs(variables.iter().copied());
    processes.start("mpirun", &mut command);
    let in_time = processes.ends_by(Instant::now() + Duration::from_secs(60));
    assert!(in_time && processes.succeeded(), "{processes}");
    for rank in 0..3 {
        assert_eq!(processes.rank(rank).count(&format!("rank {rank} took")), 1, "{processes}");
    }
}

#[test]
fn a_sum_in_shared_memory_takes_a_few_segments() {
    run("1", FEW_BYTES, &[]);
}

#[test]
fn a_sum_by_messages_takes_a_few_segments() {
    run("0", FEW_BYTES, &[]);
}

#[test]
fn a_sum_over_sockets_takes_a_few_segments_where_ranks_wait_for_a_processor() {
    run("0", LAGGING_BYTES, &[("OMPI_MCA_btl", "tcp,self"), ("RINGPULL_ALGORITHM", "ring"), (BUSY, "1")]);
}
