// Command cuda uses the CUDA binding directly: it lists the GPUs, copies numbers to one, runs a kernel on them and
// copies the result back. It is built without a C compiler and the CUDA toolkit; it needs the driver at run time.
//
//	go run ./examples/cuda
package main

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"log"
	"math"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

//go:embed saxpy.ptx
var saxpy []byte

func main() {
	if err := list(); err != nil {
		log.Fatal(err)
	}
	sum, err := compute(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("2*x + y over %d elements sums to %.0f\n", 1<<20, sum)
}

// list prints the driver's description of every GPU.
func list() error {
	version, err := cuda.DriverVersion()
	if err != nil {
		return err
	}
	infos, err := cuda.Devices()
	if err != nil {
		return err
	}
	fmt.Printf("the driver supports CUDA %s\n", version)
	for _, info := range infos {
		fmt.Printf("%s  %s  %d MiB  GPU-%s\n", info, info.Name, info.TotalBytes>>20, info.UUID)
	}
	return nil
}

// compute computes y = 2*x + y for n elements on the first GPU and returns the sum of y.
func compute(n int) (sum float64, err error) {
	dev, err := cuda.Open(0)
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	x, err := upload(dev, n, func(i int) float32 { return float32(i % 10) })
	if err != nil {
		return 0, err
	}
	defer x.Close()
	y, err := upload(dev, n, func(int) float32 { return 1 })
	if err != nil {
		return 0, err
	}
	defer y.Close()

	code, err := dev.LoadModule(saxpy) // compiled for the GPU at run time
	if err != nil {
		return 0, err
	}
	defer code.Close()
	kernel, err := code.Function("saxpy")
	if err != nil {
		return 0, err
	}
	grid := cuda.LaunchConfig{Grid: cuda.Dim3{X: uint32(n+255) / 256}, Block: cuda.Dim3{X: 256}}
	if err := kernel.Launch(grid, float32(2), x, y, n); err != nil {
		return 0, err
	}
	result := make([]byte, 4*n)
	if _, err := y.ReadAt(result, 0); err != nil { // waits for the kernel
		return 0, err
	}
	for i := range n {
		sum += float64(math.Float32frombits(binary.LittleEndian.Uint32(result[4*i:])))
	}
	return sum, nil
}

// upload returns owned memory of the GPU with n floats in it.
func upload(dev *cuda.Device, n int, value func(i int) float32) (*cuda.Memory, error) {
	data := make([]byte, 0, 4*n)
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(value(i)))
	}
	m, err := dev.AllocMemory(int64(len(data)))
	if err != nil {
		return nil, err
	}
	if _, err := m.WriteAt(data, 0); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}
