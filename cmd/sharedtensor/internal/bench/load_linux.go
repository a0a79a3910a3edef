package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

// Load measures how fast a file in the page cache is loaded into shared memory. The floor is a plain read of the same
// file into fresh anonymous memory. Both include allocation and exclude freeing.
func Load(ctx context.Context, o Options) ([]Result, error) {
	size := pick[int64](o.Effort, 1<<30, 256<<20, 4<<20)
	limit, err := affordable()
	if err != nil {
		return nil, err
	}
	if size > limit {
		o.note("load-%s is left out: it is more than a quarter of the available memory", sizeName(size))
		return nil, nil
	}
	o.stage("load: writing a file of %s", sizeName(size))
	s, err := newStage(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	dir, err := s.tempDir(o.Dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "model.safetensors")
	if err := module.SynthesizeFile(path, module.Synthetic{Tensors: 200, Bytes: size}); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	o.stage("load")
	all, err := alternate(ctx, schedule{
		turns: pick(o.Effort, 20, 10, 1), limit: pick(o.Effort, 20*time.Second, 2*time.Second, time.Second),
	},
		subject{rounds: 1, run: func(ctx context.Context) (time.Duration, error) { return s.load(ctx, path) }},
		subject{rounds: 1, run: func(context.Context) (time.Duration, error) { return plainRead(f, int(info.Size())) }})
	if err != nil {
		return nil, err
	}
	rate := func(t turns) float64 { return float64(info.Size()) / t.all().median().Seconds() / (1 << 30) }
	name := fmt.Sprintf("load-%s", sizeName(size))
	return []Result{figure(name, rate(all[0]), "GiB/s").over(rate(all[1])).atLeast(Ratio, 0.8)}, nil
}

// load loads the file in the same way as an owner.
func (s *stage) load(ctx context.Context, path string) (time.Duration, error) {
	start := time.Now()
	sd, err := module.Load(ctx, s.dev, path, module.LoadOptions{})
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, sd.Close()
}

// plainRead reads the file into freshly mapped memory, because Go's allocator would reuse memory.
func plainRead(f *os.File, size int) (time.Duration, error) {
	start := time.Now()
	memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	_, err = io.ReadFull(io.NewSectionReader(f, 0, int64(size)), memory)
	took := time.Since(start)
	if unmapErr := syscall.Munmap(memory); err == nil {
		err = os.NewSyscallError("munmap", unmapErr)
	}
	return took, err
}
