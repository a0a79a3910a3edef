//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"example.com/onnx/internal/inputs"
	"example.com/onnx/internal/run"
	"example.com/onnx/internal/wheel"
	"example.com/onnx/ort"
)

// realModels serves the models of two packages and compares the answers to real inputs.
func (s *stage) realModels(ctx context.Context) error {
	line, err := inputs.Line(320)
	if err != nil {
		return err
	}
	left, err := inputs.Line(192)
	if err != nil {
		return err
	}
	steps, err := inputs.Speech()
	if err != nil {
		return err
	}
	fmt.Fprintln(s.out, "model                 requests  largest batch  largest difference")
	for _, m := range []struct {
		name   string
		path   func(context.Context) (string, error)
		batch  string
		level  string
		stream []map[string]ort.Tensor
		carry  [2]string // output and the input of the next step
	}{
		{"PP-OCR recognizer", wheel.TextRecognizer, "x=0,softmax_11.tmp_0=0", "2", []map[string]ort.Tensor{line}, [2]string{}},
		{"PP-OCR classifier", wheel.TextClassifier, "x=0,save_infer_model/scale_0.tmp_1=0", "2", []map[string]ort.Tensor{left}, [2]string{}},
		{"Silero VAD", wheel.VoiceDetector, "input=0,state=1,output=0,stateN=1", "0", steps, [2]string{"stateN", "state"}},
	} {
		path, err := m.path(ctx)
		if err != nil {
			return err
		}
		if err := s.programs.Split(ctx, "-optimize", m.level, path, s.file("real")); err != nil {
			return err
		}
		if err := s.realModel(ctx, m.name, path, m.batch, m.stream, m.carry); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// realModel serves one model to several clients at once.
func (s *stage) realModel(ctx context.Context, name, path, batch string, stream []map[string]ort.Tensor, carry [2]string) (err error) {
	want, text, err := s.referenceStream(path, stream, carry)
	if err != nil {
		return err
	}
	socket := s.file("real.sock")
	owner, err := s.programs.Owner(ctx, socket, "real", s.file("real"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, owner.Stop()) }()
	service, err := s.programs.Service(ctx, s.workers, "-library", s.path, "-socket", socket, "-batch", batch, "-batch-wait", "20ms", "real")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Stop()) }()

	const clients, rounds = 8, 2
	var mu sync.Mutex
	var failed error
	var requests, largestBatch int
	var largest float64
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			client := run.NewClient()
			for range rounds {
				outputs, batches, err := ask(ctx, client, service.URL, stream, carry)
				mu.Lock()
				failed = errors.Join(failed, err)
				for i := range outputs {
					for output, t := range want[i] {
						largest = max(largest, run.Difference(t, outputs[i][output]))
					}
				}
				requests += len(batches)
				for _, n := range batches {
					largestBatch = max(largestBatch, n)
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if failed != nil {
		return failed
	}
	fmt.Fprintf(s.out, "%-20s  %8d  %13d  %18.1e%s\n", name, requests, largestBatch, largest, text)
	if largest > tolerance {
		return fmt.Errorf("an answer differs by %g from the model that is not split", largest)
	}
	return nil
}

// referenceStream runs the steps of a stream on the model that is not split. text is the recognizer's result, for the table.
func (s *stage) referenceStream(path string, stream []map[string]ort.Tensor, carry [2]string) (want []map[string]ort.Tensor, text string, err error) {
	session, err := s.library.NewSessionFromFile(path, defaults)
	if err != nil {
		return nil, "", err
	}
	defer session.Close()
	next := stream[0]
	for i := range stream {
		outputs, err := session.Run(next)
		if err != nil {
			return nil, "", err
		}
		want = append(want, outputs)
		if i+1 < len(stream) {
			next = following(stream[i+1], outputs, carry)
		}
	}
	if characters, err := session.Metadata("character"); err == nil && characters != "" {
		text = fmt.Sprintf("  reads %q", inputs.DecodeText(want[0][session.Outputs[0]], characters))
	}
	return want, text, nil
}

// ask sends the steps of a stream one after another.
func ask(ctx context.Context, client *http.Client, url string, stream []map[string]ort.Tensor, carry [2]string) (outputs []map[string]ort.Tensor, batches []int, err error) {
	next := stream[0]
	for i := range stream {
		a, err := run.Infer(ctx, client, url, next)
		if err != nil {
			return outputs, batches, err
		}
		outputs, batches = append(outputs, a.Outputs), append(batches, a.Batch)
		if i+1 < len(stream) {
			next = following(stream[i+1], a.Outputs, carry)
		}
	}
	return outputs, batches, nil
}

// following returns the next step with the state of the last one.
func following(step, outputs map[string]ort.Tensor, carry [2]string) map[string]ort.Tensor {
	next := map[string]ort.Tensor{}
	for name, t := range step {
		next[name] = t
	}
	next[carry[1]] = outputs[carry[0]]
	return next
}
