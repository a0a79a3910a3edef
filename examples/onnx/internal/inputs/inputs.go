//go:build linux

// Package inputs holds real inputs for the demonstration and the tests: a line of text and a second of speech.
package inputs

import (
	"bytes"
	_ "embed"
	"fmt"
	"image/color"
	"image/png"
	"strings"
	"unsafe"

	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
)

// Text is the text of the image.
const Text = "shared tensors 2026"

//go:embed line.png
var line []byte

//go:embed speech.wav
var speech []byte

// Line returns the left part of the image as PP-OCR models receive it: [1, 3, 48, width], from -1 to 1. The image is 320
// pixels wide.
func Line(width int) (map[string]ort.Tensor, error) {
	img, err := png.Decode(bytes.NewReader(line))
	if err != nil {
		return nil, err
	}
	height := img.Bounds().Dy()
	if width > img.Bounds().Dx() {
		return nil, fmt.Errorf("the image is %d pixels wide", img.Bounds().Dx())
	}
	x := make([]float32, 0, 3*height*width)
	for range 3 {
		for row := range height {
			for column := range width {
				gray := color.GrayModel.Convert(img.At(column, row)).(color.Gray).Y
				x = append(x, float32(gray)/127.5-1)
			}
		}
	}
	return map[string]ort.Tensor{"x": ort.Floats([]int64{1, 3, int64(height), int64(width)}, x)}, nil
}

// DecodeText returns the text of the recognizer's output: at each position the best class, without repetitions and blanks.
// characters is the model's metadata "character".
func DecodeText(y ort.Tensor, characters string) string {
	alphabet := append([]string{""}, strings.Split(characters, "\n")...)
	alphabet = append(alphabet, " ")
	classes := int(y.Shape[len(y.Shape)-1])
	var text strings.Builder
	last := 0
	for values := y.Float32s(); len(values) >= classes; values = values[classes:] {
		best := 0
		for class, p := range values[:classes] {
			if p > values[best] {
				best = class
			}
		}
		if best != last && best < len(alphabet) {
			text.WriteString(alphabet[best])
		}
		last = best
	}
	return text.String()
}

const (
	chunk   = 512 // samples of one step of the voice detector
	context = 64  // samples of the step before
)

// Speech returns the steps of the clip for the voice detector. The state of each step is the output of the one before.
func Speech() ([]map[string]ort.Tensor, error) {
	clip, err := wav.Decode(bytes.NewReader(speech), int64(len(speech)))
	if err != nil {
		return nil, err
	}
	var steps []map[string]ort.Tensor
	before := make([]float32, context)
	for at := 0; at+chunk <= len(clip.Samples); at += chunk {
		x := make([]float32, chunk)
		clip.Chunk(x, at)
		x = append(before, x...)
		before = append([]float32(nil), x[chunk:]...)
		rate := int64(16000)
		steps = append(steps, map[string]ort.Tensor{
			"input": ort.Floats([]int64{1, context + chunk}, x),
			"state": ort.Floats([]int64{2, 1, 128}, make([]float32, 256)),
			"sr":    {DType: ort.Int64, Data: unsafe.Slice((*byte)(unsafe.Pointer(&rate)), 8)},
		})
	}
	return steps, nil
}
