package link

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ListParts requests the parts of a list in order and joins them.
func ListParts(request func(message.List) (message.Listed, error)) (all message.Listed, err error) {
	var ask message.List
	for {
		part, err := request(ask)
		if err != nil {
			return all, err
		}
		if n := len(all.Models); n > 0 && len(part.Models) > 0 && all.Models[n-1].Name == part.Models[0].Name {
			all.Models[n-1].Versions = append(all.Models[n-1].Versions, part.Models[0].Versions...)
			part.Models = part.Models[1:]
		}
		all.Models = append(all.Models, part.Models...)
		all.Loading = append(all.Loading, part.Loading...)
		switch {
		case part.Next == "":
			return all, nil
		case part.Next < ask.After, part.Next == ask.After && part.NextVersion >= ask.AfterVersion:
			return all, fmt.Errorf("%w: answer: the list is not in order", status.ErrProtocol)
		}
		ask = message.List{After: part.Next, AfterVersion: part.NextVersion}
	}
}
