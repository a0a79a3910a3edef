// Command gen writes the generated part of package cu from a cuda.h.
//
//	go run -C internal/gen . -header /path/to/cuda.h
//
// The header is part of the CUDA toolkit and of the wheels nvidia-cuda-runtime (13.x) and nvidia-cuda-runtime-cu12. The
// command also reads cudaTypedefs.h in the same folder: the names of its PFN_ types contain the CUDA version that
// introduced each symbol. The output contains only names, types and numbers of the headers; the comments are from the
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
	header := flag.String("header", os.Getenv("CUDA_H"), "cuda.h to read; the default is $CUDA_H")
	out := flag.String("out", "../..", "directory of package cu")
	docs := flag.String("docs", "docs", "directory of the doc files")
	lax := flag.Bool("lax", false, "also write functions and types without a doc comment")
	flag.Parse()
	if *header == "" {
		return fmt.Errorf("no header: set -header or CUDA_H")
	}
	texts, err := readDocs(*docs)
	if err != nil {
		return err
	}
	m, err := readModel(*header, filepath.Join(filepath.Dir(*header), "cudaTypedefs.h"))
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
	fmt.Printf("cuda.h %d.%d: %s\n", m.version/1000, m.version%1000/10, m.summary())
	return nil
}
