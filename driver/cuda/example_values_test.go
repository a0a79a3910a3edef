package cuda_test

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Examples of options, kinds and results. Those of objects are in example_types_test.go.

func ExampleAccess() {
	dev := device()
	defer dev.Close()
	pool := must(dev.NewSharedPool(cuda.FileHandle))
	defer pool.Close()
	fmt.Println(must(pool.Access(dev)) == cuda.ReadWrite)
	// Output: true
}

func ExampleAdvice() {
	dev := device()
	defer dev.Close()
	m := must(dev.AllocManaged(1 << 16))
	defer m.Close()
	ok(m.Advise(0, m.Bytes(), cuda.PreferLocation, dev.Location()))
	ok(m.Advise(0, m.Bytes(), cuda.AccessedBy, cuda.HostLocation)) // the host reads without faults
	ok(m.Advise(0, 4096, cuda.ReadMostly, cuda.Location{}))
	// Output:
}

func ExampleAllocation() {
	dev := device()
	defer dev.Close()
	size := must(dev.Granularity(cuda.FileHandle, false))
	a := must(dev.CreateAllocation(size, cuda.FileHandle)) // memory without an address
	defer a.Close()
	f := must(a.ExportFile()) // for another process
	defer f.Close()
	imported := must(dev.ImportFile(f))
	defer imported.Close()
	fmt.Println(a.Bytes() == size, imported.Bytes())
	// Output: true 0
}

func ExampleBox() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	image := must(cuda.NewBuffer[byte](dev, 16)) // 4 rows of 4
	defer image.Close()
	patch := must(cuda.NewBuffer[byte](dev, 4)) // 2 rows of 2
	defer patch.Close()
	ok(image.Write([]byte("abcdefghijklmnop"), 0))
	middle := cuda.Box{Operand: cuda.Operand{Memory: image.Memory(), Offset: 5}, RowPitch: 4}
	ok(stream.CopyBox(cuda.BoxCopy{Dst: cuda.Box{Operand: cuda.Operand{Memory: patch.Memory()}}, Src: middle, Width: 2, Height: 2}))
	ok(stream.Synchronize())
	fmt.Println(string(must(patch.Values())))
	// Output: fgjk
}

func ExampleBoxCopy() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	small := must(cuda.NewBuffer[byte](dev, 4))
	defer small.Close()
	err := stream.CopyBox(cuda.BoxCopy{ // two rows of 4 bytes do not fit
		Dst: cuda.Box{Operand: cuda.Operand{Memory: small.Memory()}}, Src: cuda.Box{Operand: cuda.Operand{Memory: small.Memory()}}, Width: 4, Height: 2,
	})
	fmt.Println(errors.Is(err, driver.ErrRange))
	// Output: true
}

func ExampleCacheMode() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModuleWith([]byte(kernelsPTX), cuda.JITOptions{Cache: cuda.CacheAll}))
	defer module.Close()
	// Output:
}

func ExampleClusterScheduling() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModule([]byte(kernelsPTX)))
	defer module.Close()
	ok(must(module.Function("empty")).Launch(cuda.LaunchConfig{Grid: cuda.Dim3{X: 4}, Attributes: []cuda.LaunchAttribute{
		cuda.ClusterSize(cuda.Dim3{X: 2}), cuda.PreferClusterScheduling(cuda.ClusterSpread),
	}}))
	ok(dev.Synchronize())
	// Output:
}

func ExampleComparison() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	flags := must(cuda.NewBuffer[uint32](dev, 1))
	defer flags.Close()
	ok(flags.Write([]uint32{6}, 0))
	ok(stream.MemOps(cuda.Wait32(flags.Memory(), 0, cuda.AnyBit, 4), cuda.Wait32(flags.Memory(), 0, cuda.AtLeast, 5)))
	ok(stream.Synchronize())
	// Output:
}

func ExampleCompileError() {
	dev := device()
	defer dev.Close()
	_, err := dev.LoadModule([]byte(".version 7.0\n.target sm_50\n.entry broken("))
	var failed *cuda.CompileError
	if errors.As(err, &failed) {
		fmt.Println(failed.Log)
	}
	// Output: ptxas fatal   : syntax error
}

func ExampleCopy() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	from, to := must(cuda.NewBuffer[byte](dev, 4)), must(cuda.NewBuffer[byte](dev, 4))
	defer from.Close()
	defer to.Close()
	ok(from.Write([]byte("abcd"), 0))
	part := func(b *cuda.Buffer[byte], offset int64) cuda.Operand {
		return cuda.Operand{Memory: b.Memory(), Offset: offset}
	}
	ok(stream.CopyBatch([]cuda.Copy{
		{Dst: part(to, 0), Src: part(from, 2), Bytes: 2}, {Dst: part(to, 2), Src: part(from, 0), Bytes: 2},
	}))
	ok(stream.Synchronize())
	fmt.Println(string(must(to.Values())))
	// Output: cdab
}

func ExampleDim3() {
	const n = 1000
	block := cuda.Dim3{X: 256}
	grid := cuda.Dim3{X: (n + block.X - 1) / block.X} // Y and Z count as 1
	fmt.Println(grid.X)
	// Output: 4
}

func ExampleError() {
	dev := device()
	defer dev.Close()
	_, err := dev.AllocLegacy(1 << 40)
	var failed *cuda.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Func, failed.Name())
	}
	fmt.Println(errors.Is(err, driver.ErrOutOfMemory))
	// Output:
	// cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY
	// true
}

func ExampleEventOptions() {
	dev := device()
	defer dev.Close()
	start := must(dev.NewEvent(cuda.EventOptions{Timing: true}))
	defer start.Close()
	end := must(dev.NewEvent(cuda.EventOptions{Timing: true}))
	defer end.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	ok(start.Record(stream))
	ok(end.Record(stream))
	ok(end.Synchronize())
	fmt.Println(must(end.Since(start)) >= 0)
	// Output: true
}

func ExampleHandleTypes() {
	dev := device()
	defer dev.Close()
	size := must(dev.Granularity(cuda.FileHandle|cuda.FabricHandle, false))
	a := must(dev.CreateAllocation(size, cuda.FileHandle|cuda.FabricHandle)) // shared both ways
	defer a.Close()
	must(a.ExportFabric())
	must(a.ExportFile()).Close()
	// Output:
}

func ExampleJITOptions() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModuleWith([]byte(kernelsPTX), cuda.JITOptions{MaxRegisters: 32, LineInfo: true, Verbose: true}))
	defer module.Close()
	fmt.Println(module.Log())
	// Output: ptxas info    : 0 bytes gmem
}

func ExampleLaunchConfig() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	module := must(dev.LoadModule([]byte(kernelsPTX)))
	defer module.Close()
	b := must(cuda.NewBuffer[uint32](dev, 6))
	defer b.Close()
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: 2}, Block: cuda.Dim3{X: 3}, Stream: stream} // 6 threads
	ok(must(module.Function("fill")).Launch(cfg, b, uint32(7), b.Len()))
	ok(stream.Synchronize())
	fmt.Println(must(b.Values()))
	// Output: [7 7 7 7 7 7]
}

func ExampleLocation() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	m := must(dev.AllocManaged(1 << 16))
	defer m.Close()
	ok(stream.Prefetch(m, 0, m.Bytes(), cuda.HostLocation))
	ok(stream.Synchronize())
	at, known, err := m.LastPrefetch(0, m.Bytes())
	fmt.Println(at == cuda.HostLocation, known, err)
	// Output: true true <nil>
}

func ExampleMemOp() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	b := must(cuda.NewBuffer[uint64](dev, 2))
	defer b.Close()
	ok(stream.MemOps(cuda.Write64(b.Memory(), 0, 1), cuda.MemBarrier(), cuda.Write64(b.Memory(), 8, 2))) // in this order
	ok(stream.Synchronize())
	fmt.Println(must(b.Values()))
	// Output: [1 2]
}

func ExampleMemoryDomain() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModule([]byte(kernelsPTX)))
	defer module.Close()
	sends := []cuda.LaunchAttribute{cuda.InMemoryDomain(cuda.RemoteDomain)} // fences of other kernels do not wait for it
	ok(must(module.Function("empty")).Launch(cuda.LaunchConfig{Attributes: sends}))
	ok(dev.Synchronize())
	// Output:
}

func ExampleNode() {
	dev := device()
	defer dev.Close()
	graph := must(dev.NewGraph())
	defer graph.Close()
	first := must(graph.AddEmpty())
	second := must(graph.AddEmpty(first)) // waits for first
	dependencies := must(second.Dependencies())
	fmt.Println(len(dependencies), dependencies[0] == first)
	// Output: 1 true
}

func ExampleNodeKind() {
	dev := device()
	defer dev.Close()
	b := must(cuda.NewBuffer[byte](dev, 4))
	defer b.Close()
	graph := must(dev.NewGraph())
	defer graph.Close()
	node := must(graph.AddFill8(b.Memory(), 0, 4, 1))
	fmt.Println(must(node.Kind()))
	// Output: fill
}

func ExampleOperand() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	b := must(cuda.NewBuffer[byte](dev, 4))
	defer b.Close()
	pinned := must(cuda.NewHostBuffer[byte](dev, 4))
	defer pinned.Close()
	copy(pinned.Values(), "data")
	ok(stream.CopyBatch([]cuda.Copy{
		{Dst: cuda.Operand{Memory: b.Memory()}, Src: cuda.Operand{Host: pinned.Memory(), Offset: 1}, Bytes: 3},
	}))
	ok(stream.Synchronize())
	fmt.Printf("%q\n", must(b.Values()))
	// Output: "ata\x00"
}

func ExampleOptimization() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModuleWith([]byte(kernelsPTX), cuda.JITOptions{Optimization: cuda.OptimizeO1, DebugInfo: true}))
	defer module.Close()
	// Output:
}

func ExampleOption() {
	device().Close()
	dev := must(cuda.Open(0, cuda.WithHandleKind(driver.CUDAIPC), cuda.WithStaging(2, 1<<20)))
	defer dev.Close()
	m := must(dev.Alloc(4096))
	defer m.Close()
	h := must(m.Export())
	defer h.Close()
	fmt.Println(h.Kind)
	// Output: cuda-ipc
}

func ExampleOwnership() {
	dev := device()
	defer dev.Close()
	own := must(cuda.NewBuffer[byte](dev, 4096))
	defer own.Close()
	borrowed := must(dev.WrapMemory(own.Memory().Pointer(), 4096, cuda.Borrowed))
	ok(borrowed.Fill(0, 1, 'x'))
	ok(borrowed.Close()) // leaves the memory to its owner
	fmt.Println(string(must(own.Values())[:1]))
	// Output: x
}

func ExamplePoolUsage() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	pool := must(dev.NewPool())
	defer pool.Close()
	m := must(stream.Alloc(pool, 1<<20))
	usage := must(pool.Usage())
	fmt.Println(usage.Used>>20, "MiB used,", usage.Reserved >= usage.Used)
	ok(m.Close())
	// Output: 1 MiB used, true
}

func ExampleProcessState() {
	fmt.Println(cuda.ProcessRunning, cuda.ProcessLocked, cuda.ProcessCheckpointed)
	// Output: running locked checkpointed
}

func ExampleProperties() {
	dev := device()
	defer dev.Close()
	p := must(dev.Properties())
	fmt.Println(p.Name, "has", p.Multiprocessors, "multiprocessors, threads in a warp:", p.WarpSize)
	// Output: Fake GPU 0 has 8 multiprocessors, threads in a warp: 32
}

func ExampleRegion() {
	dev := device()
	defer dev.Close()
	b := must(cuda.NewBuffer[uint32](dev, 2))
	defer b.Close()
	var region cuda.Region = b // also *tensor.Tensor; a kernel receives its address
	memory, offset, err := region.Region()
	fmt.Println(memory.Bytes(), offset, err)
	// Output: 8 0 <nil>
}

func ExampleStats() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	m := must(dev.AllocMemory(4096))
	ok(stream.Fill8(m, 0, 1, 1))
	graph := must(stream.Capture(func() error {
		ok(m.Close()) // deferred: it cannot wait for a stream that captures
		fmt.Println("deferred:", dev.Stats().Deferred)
		return nil
	}))
	ok(graph.Close())
	// Output: deferred: 1
}

func ExampleStreamOptions() {
	dev := device()
	defer dev.Close()
	_, greatest, err := dev.PriorityRange()
	ok(err)
	urgent := must(dev.NewStream(cuda.StreamOptions{Priority: greatest}))
	defer urgent.Close()
	fmt.Println(must(urgent.Idle()))
	// Output: true
}

func ExampleUpdateError() {
	dev := device()
	defer dev.Close()
	small, large := must(dev.NewGraph()), must(dev.NewGraph())
	defer small.Close()
	defer large.Close()
	must(small.AddEmpty())
	must(large.AddEmpty(must(large.AddEmpty())))
	exec := must(small.Instantiate())
	defer exec.Close()
	var failed *cuda.UpdateError
	fmt.Println(errors.As(exec.Update(large), &failed), failed.Reason == cu.GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED)
	// Output: true true
}
