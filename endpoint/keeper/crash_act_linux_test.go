package keeper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// act is a client or publisher of a crash test. It executes the commands on its standard input.
func act(socket string) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true})
	if err != nil {
		return err
	}
	var held *endpoint.Handle
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var name string
		var value int
		command, rest, _ := strings.Cut(lines.Text(), " ")
		_, _ = fmt.Sscan(rest, &name, &value)
		answer := uint64(0)
		switch command {
		case "publish":
			sd, failed := modelOf(dev, value)
			if err = failed; err == nil {
				answer, err = c.Publish(ctx, name, sd, endpoint.PublishOptions{})
				sd.Close()
			}
		case "parts": // a version of two parts
			answer, err = publishParts(ctx, c, dev, name, value)
		case "fill": // the journal, until it is compacted
			for range 6 {
				sd, failed := modelOf(dev, value)
				if err = failed; err != nil {
					break
				}
				sd.Metadata = map[string]string{"text": strings.Repeat("x", 200<<10)}
				answer, err = c.Publish(ctx, name, sd, endpoint.PublishOptions{})
				sd.Close()
			}
		case "withdraw":
			err = c.Withdraw(ctx, name)
		case "acquire":
			var h *endpoint.Handle
			if h, err = c.Acquire(ctx, name, endpoint.AcquireOptions{}); err == nil {
				if held != nil {
					held.Close()
				}
				held, answer = h, h.Version()
				_, err = valueOf(h.StateDict())
			}
		case "check":
			if held != nil {
				_, err = valueOf(held.StateDict())
			}
		}
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println("ok", answer)
	}
	return nil
}

// publishParts publishes a version of two parts, which have the same values. If one part fails, the other is cancelled.
func publishParts(ctx context.Context, c *endpoint.Client, dev driver.Device, name string, value int) (uint64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup
	var versions [2]uint64
	var errs [2]error
	for i := range versions {
		parts.Go(func() {
			sd, err := modelOf(dev, value)
			if err == nil {
				versions[i], err = c.Publish(ctx, name, sd, endpoint.PublishOptions{Part: endpoint.Part{Index: i, Of: 2, Key: fmt.Sprint(value)}})
				sd.Close()
			}
			if errs[i] = err; err != nil {
				cancel()
			}
		})
	}
	parts.Wait()
	return versions[0], errors.Join(errs[:]...)
}
