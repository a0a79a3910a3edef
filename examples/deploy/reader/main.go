// Command reader attaches a model and prints, as one line of JSON, how long that took, the digest of what it maps, and the
// namespaces of its process. The script two-containers runs it beside an owner in another container.
//
//	go run ./examples/deploy/reader SOCKET NAME
//	go run ./examples/deploy/reader -make FILE -bytes 67108864
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// report is the output of the reader.
type report struct {
	PID     int    `json:"pid"` // in its own PID namespace
	UID     int    `json:"uid"`
	Bytes   int64  `json:"bytes"`
	Tensors int    `json:"tensors"`
	Digest  string `json:"digest"`
	// Attach is the median time of acquiring and mapping the model, Ping that of a round trip to the owner.
	Attach time.Duration `json:"attach_ns"`
	Ping   time.Duration `json:"ping_ns"`
	// Namespaces holds the kernel's ids of the process's namespaces.
	Namespaces map[string]string `json:"namespaces"`
}

func main() {
	file := flag.String("make", "", "write a synthetic model to this file instead")
	bytes := flag.Int64("bytes", 64<<20, "its size")
	flag.Parse()
	if *file != "" {
		if err := module.SynthesizeFile(*file, module.Synthetic{Tensors: 16, Bytes: *bytes}); err != nil {
			log.Fatal(err)
		}
		return
	}
	if flag.NArg() != 2 {
		log.Fatal("usage: reader SOCKET NAME")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := read(ctx, flag.Arg(0), flag.Arg(1))
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// read waits for the owner and its model, attaches it, and reads every byte in place.
func read(ctx context.Context, socket, name string) (r report, err error) {
	dev, err := host.Open()
	if err != nil {
		return r, err
	}
	defer dev.Close()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true})
	if err != nil {
		return r, err
	}
	defer client.Close()
	handle, err := client.Acquire(ctx, name, endpoint.AcquireOptions{Wait: true})
	if err != nil {
		return r, err
	}
	defer handle.Close()
	sd := handle.StateDict()
	digest, err := module.StateDictDigest(ctx, sd, 0)
	if err != nil {
		return r, err
	}
	r = report{PID: os.Getpid(), UID: os.Getuid(), Bytes: sd.Bytes(), Tensors: sd.Len(), Digest: hex.EncodeToString(digest[:]), Namespaces: namespaces()}
	if r.Attach, err = median(50, func() error {
		h, err := client.Acquire(ctx, name, endpoint.AcquireOptions{})
		if err != nil {
			return err
		}
		return h.Close()
	}); err != nil {
		return r, err
	}
	r.Ping, err = median(2000, func() error { _, err := client.Ping(ctx); return err })
	return r, err
}

// median returns the median duration of n runs.
func median(n int, run func() error) (time.Duration, error) {
	list := make([]time.Duration, n)
	for i := range list {
		start := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		list[i] = time.Since(start)
	}
	slices.Sort(list)
	return list[n/2], nil
}

// namespaces returns the ids of the namespaces that containers separate.
func namespaces() map[string]string {
	ids := map[string]string{}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		if id, err := os.Readlink(fmt.Sprintf("/proc/self/ns/%s", kind)); err == nil {
			ids[kind] = id
		}
	}
	return ids
}
