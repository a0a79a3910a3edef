// Command gen writes the generated part of package cu from a cuda.h, and of packages nvrtc, nvjitlink and nvml from the
// headers of these libraries.
//
//	go run -C internal/gen . -header /path/to/cuda.h
//	go run -C internal/gen . -target nvrtc -header /path/to/nvrtc.h
//
// The headers are part of the CUDA toolkit and of the wheels nvidia-cuda-runtime, nvidia-cuda-nvrtc, nvidia-nvjitlink and
// nvidia-nvml-dev. With a cuda.h, the command also reads cudaTypedefs.h in the same folder: the names of its PFN_ types
// contain the CUDA version that introduced each symbol. The output contains only names, types and numbers of the headers; the comments are from the
// files in docs.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("target", "cu", "package to write: cu, nvrtc, nvjitlink or nvml")
	header := flag.String("header", "", "header to read; the default is $CUDA_H, $NVRTC_H, $NVJITLINK_H or $NVML_H")
	out := flag.String("out", "", "directory of the package; the default is its place in the repository")
	lax := flag.Bool("lax", false, "also write functions and types without a doc comment")
	flag.Parse()
	t, err := findTarget(*name)
	if err != nil {
		return err
	}
	if *header == "" {
		*header = os.Getenv(t.env)
	}
	if *header == "" {
		return fmt.Errorf("no header: set -header or %s", t.env)
	}
	if *out == "" {
		*out = t.dir()
	}
	texts, err := readDocs(t.docs())
	if err != nil {
		return err
	}
	m, err := readModel(t, *header)
	if err != nil {
		return err
	}
	if err := m.addDocs(texts, *lax); err != nil {
		return err
	}
	files, err := m.generate()
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(*out, "z_*.go"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(*out, name), text, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%s %d.%d: %s\n", t.header, m.version/1000, m.version%1000/10, m.summary())
	return nil
}
