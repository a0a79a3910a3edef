package cuda_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// exampleTB lets examples use the stand-in, which a program does not do.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (exampleTB) Skipf(f string, a ...any)  { panic(fmt.Sprintf(f, a...)) }

// device is cuda.Open(0) on the stand-in.
func device() *cuda.Device {
	cudatest.Start(exampleTB{}, fakeOptions)
	return must(cuda.Open(0))
}

// must returns v. The examples omit the handling of errors.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

func ExampleDevice() {
	dev := device() // cuda.Open(0)
	defer dev.Close()
	fmt.Println(dev, dev.Info().Name)
	// A single call of package cu, by a method of the context.
	var free, total uint64
	ok(dev.Context().MemGetInfo(&free, &total).Err())
	fmt.Println(total>>20, "MiB")
	// Output:
	// cuda:0 Fake GPU 0
	// 512 MiB
}

func ExampleMemory() {
	dev := device()
	defer dev.Close()
	m := must(dev.AllocMemory(4)) // zeroed, and can be shared with other processes
	defer m.Close()
	must(m.WriteAt([]byte("ab"), 1))
	got := make([]byte, 4)
	must(m.ReadAt(got, 0))
	fmt.Printf("%q\n", got)
	// Output: "\x00ab\x00"
}

func ExampleBuffer() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	b := must(cuda.NewBuffer[float32](dev, 4))
	defer b.Close()
	ok(b.Write([]float32{1, 2, 3, 4}, 0))
	tail := must(b.Slice(2, 4))
	ok(tail.Fill(stream, 9))
	ok(stream.Synchronize())
	fmt.Println(must(b.Values()))
	// Output: [1 2 9 9]
}

func ExampleHostBuffer() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	up := must(cuda.NewHostBuffer[int32](dev, 3))
	defer up.Close()
	b := must(cuda.NewBuffer[int32](dev, 3))
	defer b.Close()
	copy(up.Values(), []int32{7, 8, 9})
	ok(b.Upload(stream, up)) // asynchronous
	ok(stream.Synchronize())
	fmt.Println(must(b.Values()))
	// Output: [7 8 9]
}

func ExampleHostMemory() {
	dev := device()
	defer dev.Close()
	pinned := must(dev.AllocHost(4096))
	defer pinned.Close()
	fmt.Println(len(pinned.Data()))
	// Output: 4096
}

func ExampleManaged() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	m := must(dev.AllocManaged(4))
	defer m.Close()
	copy(m.Data(), "host")
	ok(stream.Prefetch(m, 0, 4, dev.Location()))
	ok(stream.Fill8(m.Memory, 0, 1, 'm'))
	ok(stream.Synchronize())
	fmt.Println(string(m.Data()))
	// Output: most
}

func ExampleStream_WaitContext() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	ok(stream.LaunchHost(func() { fmt.Println("on a thread of the driver") }))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ok(stream.WaitContext(ctx)) // blocks no thread
	// Output: on a thread of the driver
}

func ExampleStream_CopyBox() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	matrix := must(cuda.NewBuffer[byte](dev, 12)) // 3 rows of 4
	defer matrix.Close()
	ok(matrix.Write([]byte("abcdefghijkl"), 0))
	column := must(cuda.NewBuffer[byte](dev, 3))
	defer column.Close()
	ok(stream.CopyBox(cuda.BoxCopy{
		Dst:   cuda.Box{Operand: cuda.Operand{Memory: column.Memory()}},
		Src:   cuda.Box{Operand: cuda.Operand{Memory: matrix.Memory(), Offset: 1}, RowPitch: 4},
		Width: 1, Height: 3,
	}))
	ok(stream.Synchronize())
	fmt.Println(string(must(column.Values())))
	// Output: bfj
}

func ExampleStream_MemOps() {
	dev := device()
	defer dev.Close()
	consumer, producer := must(dev.NewStream(cuda.StreamOptions{})), must(dev.NewStream(cuda.StreamOptions{}))
	defer consumer.Close()
	defer producer.Close()
	flag := must(cuda.NewBuffer[uint32](dev, 2))
	defer flag.Close()
	ok(consumer.MemOps(cuda.Wait32(flag.Memory(), 0, cuda.AtLeast, 1), cuda.Write32(flag.Memory(), 4, 2)))
	ok(producer.WriteValue32(flag.Memory(), 0, 1))
	ok(consumer.Synchronize())
	fmt.Println(must(flag.Values()))
	// Output: [1 2]
}

func ExampleEvent() {
	dev := device()
	defer dev.Close()
	first, second := must(dev.NewStream(cuda.StreamOptions{})), must(dev.NewStream(cuda.StreamOptions{}))
	defer first.Close()
	defer second.Close()
	event := must(dev.NewEvent(cuda.EventOptions{}))
	defer event.Close()
	ok(event.Record(first))
	ok(second.Wait(event)) // later work of second waits
	ok(second.Synchronize())
	fmt.Println(must(event.Done()))
	// Output: true
}

func ExampleKernel() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModule([]byte(kernelsPTX)))
	defer module.Close()
	type arguments struct {
		A    float32
		X, Y *cuda.Buffer[float32]
		N    int
	}
	saxpy := must(cuda.KernelOf[arguments](must(module.Function("saxpy"))))
	x, y := must(cuda.NewBuffer[float32](dev, 3)), must(cuda.NewBuffer[float32](dev, 3))
	defer x.Close()
	defer y.Close()
	ok(x.Write([]float32{1, 2, 3}, 0))
	ok(saxpy.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 32}}, arguments{A: 10, X: x, Y: y, N: 3}))
	fmt.Println(must(y.Values()))
	// Output: [10 20 30]
}

func ExampleLaunchAttribute() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModule([]byte(launchinfoPTX)))
	defer module.Close()
	out := must(cuda.NewBuffer[uint32](dev, 10))
	defer out.Close()
	ok(must(module.Function("launchinfo")).Launch(cuda.LaunchConfig{Grid: cuda.Dim3{X: 8}, Attributes: []cuda.LaunchAttribute{
		cuda.ClusterSize(cuda.Dim3{X: 4}), cuda.Cooperative(),
	}}, out))
	fmt.Println("blocks in a cluster:", must(out.Values())[6])
	// Output: blocks in a cluster: 4
}

func ExampleModule() {
	dev := device()
	defer dev.Close()
	_, err := dev.LoadModule([]byte(".version 7.0\n.target sm_50\n.entry broken("))
	fmt.Println(err)
	module := must(dev.LoadModuleWith([]byte(kernelsPTX), cuda.JITOptions{Verbose: true}))
	defer module.Close()
	fmt.Println(module.Log())
	// Output:
	// cuda:0: load module: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): the PTX does not compile: ptxas fatal   : syntax error
	// ptxas info    : 0 bytes gmem
}

func ExampleLibrary() {
	dev := device()
	defer dev.Close()
	other := must(cuda.Open(1))
	defer other.Close()
	library := must(dev.LoadLibrary([]byte(kernelsPTX), cuda.JITOptions{}))
	defer library.Close()
	fill := must(library.FunctionOn(other, "fill"))
	b := must(cuda.NewBuffer[uint32](other, 1))
	defer b.Close()
	ok(fill.Launch(cuda.LaunchConfig{}, b, uint32(5), uint32(1)))
	fmt.Println(must(b.Values()))
	// Output: [5]
}

func ExampleFunction_SuggestBlock() {
	dev := device()
	defer dev.Close()
	module := must(dev.LoadModule([]byte(kernelsPTX)))
	defer module.Close()
	threads, blocks, err := must(module.Function("saxpy")).SuggestBlock(0, 256)
	fmt.Println(threads, "threads,", blocks, "blocks,", err)
	// Output: 256 threads, 64 blocks, <nil>
}

func ExampleGraph() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	b := must(cuda.NewBuffer[byte](dev, 4))
	defer b.Close()
	graph := must(dev.NewGraph())
	defer graph.Close()
	all := must(graph.AddFill8(b.Memory(), 0, 4, 'a'))
	must(graph.AddFill8(b.Memory(), 1, 2, 'b', all)) // after all
	exec := must(graph.Instantiate())
	defer exec.Close()
	ok(exec.Launch(stream))
	ok(stream.Synchronize())
	fmt.Println(string(must(b.Values())))
	// Output: abba
}

func ExampleGraphExec_Update() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	b := must(cuda.NewBuffer[byte](dev, 1))
	defer b.Close()
	record := func(value byte) *cuda.Graph {
		return must(stream.Capture(func() error { return b.Fill(stream, value) }))
	}
	first, second := record('1'), record('2')
	defer first.Close()
	defer second.Close()
	exec := must(first.Instantiate())
	defer exec.Close()
	ok(exec.Update(second)) // cheaper than Instantiate
	ok(exec.Launch(stream))
	ok(stream.Synchronize())
	fmt.Println(string(must(b.Values())))
	// Output: 2
}

func ExampleCondition() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	b := must(cuda.NewBuffer[byte](dev, 1))
	defer b.Close()
	graph := must(dev.NewGraph())
	defer graph.Close()
	choice := must(graph.NewCondition(1, true)) // a kernel may change it
	_, bodies, err := graph.AddSwitch(choice, 2)
	ok(err)
	for i, body := range bodies {
		ok(stream.CaptureInto(body, nil, func() error { return b.Fill(stream, '0'+byte(i)) }))
	}
	exec := must(graph.Instantiate())
	defer exec.Close()
	ok(exec.Launch(stream))
	ok(stream.Synchronize())
	fmt.Println(string(must(b.Values())))
	// Output: 1
}

func ExamplePool() {
	dev := device()
	defer dev.Close()
	stream := must(dev.NewStream(cuda.StreamOptions{}))
	defer stream.Close()
	pool := must(dev.NewPool())
	defer pool.Close()
	m := must(stream.Alloc(pool, 1<<20)) // in stream order
	ok(stream.Fill8(m, 0, m.Bytes(), 1))
	ok(stream.Free(m))
	ok(stream.Synchronize())
	fmt.Println(must(pool.Usage()).Used)
	// Output: 0
}

func ExampleAddressRange() {
	dev := device()
	defer dev.Close()
	size := must(dev.Granularity(0, false))
	addresses := must(dev.ReserveAddresses(2*size, 0))
	defer addresses.Close()
	for i := range int64(2) { // two allocations at consecutive addresses
		a := must(dev.CreateAllocation(size, 0))
		ok(addresses.Map(i*size, a, size))
		ok(addresses.SetAccess(dev, i*size, size, cuda.ReadWrite))
		ok(a.Close()) // the mapping keeps the memory
	}
	m := must(dev.WrapMemory(addresses.Base(), size, cuda.Borrowed))
	defer m.Close()
	ok(m.Fill(0, size, 1))
	fmt.Println(addresses.Bytes() / size)
	// Output: 2
}

func ExampleDevice_WrapStream() {
	dev := device()
	defer dev.Close()
	var handle cu.Stream // of another library
	ok(dev.Do(func() error { return cu.StreamCreate(&handle, cu.STREAM_NON_BLOCKING).Err() }))
	stream := must(dev.WrapStream(handle, cuda.Owned))
	defer stream.Close() // destroys it
	fmt.Println(must(stream.Idle()))
	// Output: true
}

func ExampleMulticast() {
	dev := device()
	defer dev.Close()
	other := must(cuda.Open(1))
	defer other.Close()
	size := must(dev.MulticastGranularity(2, 0, true))
	object := must(dev.NewMulticast(2, size, 0, other))
	defer object.Close()
	for _, d := range []*cuda.Device{dev, other} {
		a := must(d.CreateAllocation(size, 0))
		ok(object.Bind(0, a, 0, size))
		ok(a.Close()) // the object keeps the memory
	}
	fmt.Println(object.Bytes() == size)
	// Output: true
}

func ExampleMultiprocessors() {
	dev := device()
	defer dev.Close()
	all := must(dev.Multiprocessors())
	parts, rest, err := all.Split(1, 6)
	ok(err)
	fmt.Println(parts[0].Count(), "and", rest.Count(), "of", all.Count())
	large := must(parts[0].NewContext()) // work of this device leaves the rest free
	defer large.Close()
	// Output: 6 and 2 of 8
}

func ExampleProcess() {
	dev := device()
	defer dev.Close()
	fmt.Println(must(cuda.Process{PID: os.Getpid()}.State()))
	// Output: running
}
