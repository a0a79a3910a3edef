//go:build linux

// Command measure starts replicas behind their front, with shared weights and with separate copies, and prints memory and
// requests a second as a table.
//
//	go run ./examples/replicas/measure [-vad silero_vad_16k.safetensors] [-torch PYTHON]
//
// The second model consists of -layers random matrices. -torch measures replica.py too, with a Python that has torch, numpy,
// cbor2 and the package of examples/python.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// model is the subject of a row.
type model struct {
	name, file, path string // path is that of the requests
	body             []byte
}

func main() {
	log.SetFlags(0)
	vad := flag.String("vad", "", "safetensors file of Silero VAD")
	layers := flag.Int("layers", 8, "number of the matrices")
	width := flag.Int64("width", 2048, "rows and columns of a matrix")
	seconds := flag.Float64("seconds", 3, "time of the load in each measurement")
	rounds := flag.Int("rounds", 3, "measurements of each row; the table has the medians")
	clients := flag.Int("clients", 8, "requests at the same time")
	python := flag.String("torch", "", "Python with torch")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, *vad, *python, *layers, *width, *clients, *rounds, time.Duration(*seconds*float64(time.Second))); err != nil {
		log.Fatal(err)
	}
}

func measure(ctx context.Context, vad, python string, layers int, width int64, clients, rounds int, load time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/sharedtensor", "./examples/replicas", "./examples/replicas/replica")
	if build.Dir, err = clone(ctx); err != nil {
		return err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	matrices := model{"matrices", filepath.Join(dir, "matrices.safetensors"), "/forward", []byte("[1, 2, 3]")}
	if err := randomMatrices(ctx, matrices.file, layers, width); err != nil {
		return err
	}
	models := []model{matrices}
	if vad != "" {
		models = append(models, model{"Silero VAD", vad, "/vad", clip()})
	}
	commands := []program{{"Go", []string{filepath.Join(dir, "replica"), "-listen", "{socket}"}, "-owner", "-private", true}}
	if python != "" {
		script := []string{python, filepath.Join(build.Dir, "examples/replicas/replica.py"), "--listen", "{socket}"}
		commands = append(commands, program{"torch", script, "--owner", "--private", false})
	}
	var rows []*row
	for _, m := range models {
		for _, p := range commands {
			for _, private := range []bool{true, false} {
				for _, n := range []int{1, 2, 4} {
					rows = append(rows, &row{run: run{dir: dir, model: m, program: p, private: private, replicas: n, clients: clients, load: load}})
				}
			}
		}
	}
	for range rounds { // other programs disturb all rows alike
		for _, r := range rows {
			f, err := r.measure(ctx)
			if err != nil {
				return fmt.Errorf("%s, %s, private %v, %d replicas: %w", r.model.name, r.program.name, r.private, r.replicas, err)
			}
			r.found = append(r.found, f)
		}
	}
	fmt.Println("| model | program | weights | replicas | memory | requests/s | processor time of a request |\n|---|---|---|---|---|---|---|")
	for _, r := range rows {
		fmt.Println(r)
	}
	return nil
}

// row is a row of the table.
type row struct {
	run
	found []figures
}

// String returns the medians of the row as a line of a table.
func (r *row) String() string {
	median := func(of func(f figures) float64) float64 {
		var all []float64
		for _, f := range r.found {
			all = append(all, of(f))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	weights := map[bool]string{true: "separate copies", false: "one copy"}[r.private]
	return fmt.Sprintf("| %s | %s | %s | %d | %.0f MB | %.0f | %.1f ms |", r.model.name, r.program.name, weights, r.replicas,
		median(func(f figures) float64 { return float64(f.pss) / 1e6 }), median(func(f figures) float64 { return f.rate }),
		median(func(f figures) float64 { return f.cpu.Seconds() * 1e3 }))
}

// clone returns the folder of the repository, which contains the working directory.
func clone(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("run it in a clone of the repository: %w", err)
	}
	return string(out[:len(out)-1]), nil
}

// randomMatrices writes a model of square matrices that keep the size of a vector about the same.
func randomMatrices(ctx context.Context, file string, layers int, width int64) (err error) {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	sd := module.NewStateDict()
	defer func() { err = errors.Join(err, sd.Close()) }()
	random := rand.New(rand.NewPCG(1, 2))
	bound := float32(math.Sqrt(3 / float64(width)))
	values := make([]float32, width*width)
	for i := range layers {
		for j := range values {
			values[j] = (2*random.Float32() - 1) * bound
		}
		x, err := tensor.FromSlice(dev, tensor.Shape{width, width}, values)
		if err != nil {
			return err
		}
		if err := sd.Set(fmt.Sprintf("layers.%d.weight", i), x); err != nil { // takes ownership of x
			return err
		}
	}
	return module.Save(ctx, file, sd, module.SaveOptions{})
}
