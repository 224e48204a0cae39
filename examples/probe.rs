use ringpull::*;
fn main() {
    if let Err(e) = go() { eprintln!("error: {e}"); std::process::exit(1); }
}
fn go() -> Result<()> {
    let kv = store::create("dist_sync_mpi")?;
    let (r, n) = (kv.rank(), kv.num_workers());
    for len in [0usize, 1, 5, 1000, 1_000_003, 6_250_000] {
        let key = len as i64;
        kv.init(key, &Tensor::zeros(DType::F32, &[len]))?;
        let vals: Vec<f32> = (0..len).map(|i| ((i % 13) + r) as f32).collect();
        let g = Tensor::from_slice(&[len], &vals);
        let out = Tensor::zeros(DType::F32, &[len]);
        let mut best = f64::MAX;
        for it in 0..5 {
            kv.barrier()?;
            let t = std::time::Instant::now();
            if it == 0 { kv.push(key, &[g.clone()], 0)?; kv.pull(key, &[out.clone()], 0)?; } else { kv.push_pull(key, &[g.clone()], &[out.clone()], 0)?; }
            let o = out.to_vec::<f32>()?;
            best = best.min(t.elapsed().as_secs_f64());
            for (i, v) in o.iter().enumerate() { assert_eq!(*v, (n * (i % 13) + n * (n - 1) / 2) as f32, "len {len} i {i}"); }
        }
        if r == 0 { println!("len {len} ok best {best:.6}"); }
    }
    if std::env::args().nth(1).as_deref() == Some("loop") {
        let g = Tensor::zeros(DType::F32, &[1000003]);
        let out = Tensor::zeros(DType::F32, &[1000003]);
        loop { kv.push_pull(1000003i64, &[g.clone()], &[out.clone()], 0)?; out.read()?; }
    }
    if std::env::args().nth(1).as_deref() == Some("stall") {
        if r != 1 { kv.push(5i64, &[Tensor::zeros(DType::F32, &[5])], 0)?; kv.pull(5i64, &[Tensor::zeros(DType::F32, &[5])], 0)?; }
        else { std::thread::sleep(std::time::Duration::from_secs(30)); }
    }
    Ok(())
}
