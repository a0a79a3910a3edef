// Package wheel downloads files that Python packages contain. They stay in the user's cache folder.
package wheel

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// The packages that the example uses.
const (
	ONNXRuntime = "onnxruntime==1.32.0"
	RapidOCR    = "rapidocr-onnxruntime==1.4.4"
	Silero      = "silero-vad==6.2.3"
)

// maxFile is the maximum size of an unpacked file in bytes.
const maxFile = 1 << 30

// Folder returns a folder with the files of a wheel on PyPI, such as RapidOCR, that match a pattern of path.Match.
// The first call downloads the wheel with pip; other calls, also in other processes, find the folder in the cache.
func Folder(ctx context.Context, requirement, pattern string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "sharedtensor-onnx")
	dir := filepath.Join(root, strings.ReplaceAll(requirement, "==", "-"))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(root, "download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	archive, err := download(ctx, tmp, requirement)
	if err != nil {
		return "", fmt.Errorf("downloading %s: %w", requirement, err)
	}
	files := filepath.Join(tmp, "files")
	if err := extract(archive, pattern, files); err != nil {
		return "", err
	}
	if err := os.Rename(files, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another process was faster
		return "", err
	}
	return dir, nil
}

// Runtime returns the path of ONNX Runtime's library.
func Runtime(ctx context.Context) (string, error) {
	dir, err := Folder(ctx, ONNXRuntime, "onnxruntime/capi/libonnxruntime.so.*")
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "libonnxruntime.so.*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s contains %d libraries", dir, len(found))
	}
	return found[0], nil
}

// TextClassifier returns the path of a PP-OCR model that detects lines of text that are upside down.
func TextClassifier(ctx context.Context) (string, error) {
	return rapidOCR(ctx, "ch_ppocr_mobile_v2.0_cls_infer.onnx")
}

// TextRecognizer returns the path of a PP-OCR model that reads a line of text.
func TextRecognizer(ctx context.Context) (string, error) {
	return rapidOCR(ctx, "ch_PP-OCRv4_rec_infer.onnx")
}

// rapidOCR returns the path of a model in RapidOCR's wheel.
func rapidOCR(ctx context.Context, name string) (string, error) {
	dir, err := Folder(ctx, RapidOCR, "rapidocr_onnxruntime/models/*.onnx")
	return filepath.Join(dir, name), err
}

// VoiceDetector returns the path of Silero VAD for 16 kHz.
func VoiceDetector(ctx context.Context) (string, error) {
	dir, err := Folder(ctx, Silero, "silero_vad/data/silero_vad_16k*.onnx")
	return filepath.Join(dir, "silero_vad_16k_op15.onnx"), err
}

// download stores the wheel in tmp and returns its path.
func download(ctx context.Context, tmp, requirement string) (string, error) {
	machine, ok := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if !ok || runtime.GOOS != "linux" {
		return "", errors.ErrUnsupported
	}
	python := "python3"
	if exec.CommandContext(ctx, python, "-m", "pip", "--version").Run() != nil { // Debian's python3 lacks pip
		venv := filepath.Join(tmp, "venv")
		if said, err := exec.CommandContext(ctx, python, "-m", "venv", venv).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, said)
		}
		python = filepath.Join(venv, "bin", "python")
	}
	pip := exec.CommandContext(ctx, python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.12",
		"--platform=manylinux_2_28_"+machine, "--platform=manylinux_2_27_"+machine, "-d", tmp, requirement)
	if said, err := pip.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("pip stored %d wheels", len(found))
	}
	return found[0], nil
}

// extract unpacks the files that match the pattern into a new folder.
func extract(archive, pattern, dir string) error {
	wheel, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer wheel.Close()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	count := 0
	for _, f := range wheel.File {
		ok, err := path.Match(pattern, f.Name)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := unpack(f, filepath.Join(dir, path.Base(f.Name))); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		count++
	}
	if count == 0 {
		return fmt.Errorf("%s has no file %s", filepath.Base(archive), pattern)
	}
	return nil
}

// unpack writes one file.
func unpack(f *zip.File, name string) error {
	if f.UncompressedSize64 > maxFile {
		return fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
