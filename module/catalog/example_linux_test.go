package catalog_test

import (
	"fmt"
	"log"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Readers keep their version when others are published; it is freed with the last reader.
func Example() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	models := catalog.New(catalog.Options{Freed: func(name string, version uint64, _ error) {
		fmt.Println("freed", name, version)
	}})
	defer models.Close()
	publish := func() {
		sd, err := module.New(dev, []module.NamedSpec{{Name: "bias", DType: tensor.Float32, Shape: tensor.Shape{4}}})
		if err != nil {
			log.Fatal(err)
		}
		version, err := models.Publish("llm", sd, catalog.Origin{}) // takes ownership of sd
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("published", version)
	}
	publish()
	lease, err := models.Acquire("llm", 0, catalog.Holder{ID: 1})
	if err != nil {
		log.Fatal(err)
	}
	publish()
	fmt.Println("reader has", lease.Version, "of", lease.StateDict().Bytes(), "bytes")
	if err := models.Release(lease.ID, 1); err != nil {
		log.Fatal(err)
	}
	// Output:
	// published 1
	// published 2
	// reader has 1 of 16 bytes
	// freed llm 1
	// freed llm 2
}
