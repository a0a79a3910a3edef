package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// memory creates arguments.
type memory struct{ dev *host.Device }

func newMemory() (*memory, error) {
	dev, err := host.Open()
	if err != nil {
		return nil, err
	}
	return &memory{dev}, nil
}

func (m *memory) Close() error { return m.dev.Close() }

// argument creates a tensor whose pages are all allocated. The caller closes the tensor.
func (m *memory) argument(size int64) (argument, error) {
	t, err := tensor.Zeros(m.dev, tensor.Uint8, tensor.Shape{size})
	if err != nil {
		return argument{}, err
	}
	data, err := tensor.Data[uint8](t)
	if err != nil {
		t.Close()
		return argument{}, err
	}
	for i := range data {
		data[i] = byte(i*31 + 7)
	}
	return argument{tensor: t, bytes: data}, nil
}

// allTensors measures tensors of every size as arguments.
func (b *bench) allTensors(ctx context.Context, progress func(string)) error {
	args := map[int64]argument{}
	defer func() {
		for _, arg := range args {
			arg.tensor.Close()
		}
	}()
	for _, size := range b.plan.sizes {
		arg, err := b.memory.argument(size)
		if err != nil {
			return err
		}
		args[size] = arg
	}
	progress("tensors as arguments")
	return b.of(func(s *subject) bool { return !s.onlySmall }).rounds(func(s *subject, round int) error {
		if s.copies == 0 {
			return s.passTensors(ctx, b.plan.sizes, args, b.plan.passing)
		}
		for _, size := range b.plan.sizes {
			if round == 0 {
				s.refuse(size)
			}
			if s.skipped[size] != "" {
				continue
			}
			if err := s.sendTensors(ctx, args[size], b.plan.sends(s, size, round)); err != nil {
				return fmt.Errorf("tensor of %d bytes: %w", size, err)
			}
		}
		return nil
	})
}

// sends returns the number of tensors of a size that a copying subject sends in a round.
func (p plan) sends(s *subject, size int64, round int) int {
	n := min(p.copying/size, int64(p.passing*p.rounds))
	if n < int64(p.rounds) { // too few for every round
		if int64(round) < max(n, 1) {
			return 1
		}
		return 0
	}
	return int(n) / p.rounds
}

// refuse records why a subject cannot send a size.
func (s *subject) refuse(size int64) {
	switch room := availableMemory(); {
	case s.maxBytes > 0 && size > s.maxBytes:
		s.skipped[size] = s.why
	case s.copies > 0 && room > 0 && room < s.copies*size+size:
		s.skipped[size] = fmt.Sprintf("it needs some %d GiB of free memory", s.copies*size>>30)
	}
}

// passTensors sends n tensors of every size, alternating between the sizes so that other load on the machine affects
// all of them.
func (s *subject) passTensors(ctx context.Context, sizes []int64, args map[int64]argument, n int) error {
	turns := make([]samples, len(sizes))
	for range n {
		for i, size := range sizes {
			took, err := s.sendTensor(ctx, args[size])
			if err != nil {
				return fmt.Errorf("tensor of %d bytes: %w", size, err)
			}
			turns[i] = append(turns[i], took)
		}
	}
	for i, size := range sizes {
		s.tensors[size] = append(s.tensors[size], turns[i])
	}
	return nil
}

// sendTensors sends n tensors of one size in sequence.
func (s *subject) sendTensors(ctx context.Context, arg argument, n int) error {
	var turn samples
	for range n {
		took, err := s.sendTensor(ctx, arg)
		if err != nil {
			return err
		}
		turn = append(turn, took)
	}
	if n > 0 {
		size := int64(len(arg.bytes))
		s.tensors[size] = append(s.tensors[size], turn)
	}
	return nil
}

func (s *subject) sendTensor(ctx context.Context, arg argument) (time.Duration, error) {
	start := time.Now()
	got, err := s.client.send(ctx, arg)
	took := time.Since(start)
	if err == nil && got != sign(arg.bytes) && got != uint64(len(arg.bytes)) {
		err = fmt.Errorf("the function returned %#x instead of %#x", got, sign(arg.bytes))
	}
	return took, err
}

// availableMemory returns the bytes that can be allocated without swapping, or 0 if that is unknown.
func availableMemory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}
