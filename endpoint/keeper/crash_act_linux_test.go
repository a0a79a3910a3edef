package keeper_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

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
