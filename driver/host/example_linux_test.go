package host_test

import (
	"fmt"
	"log"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// Memory is exported as a handle, which another process maps. Here both are one process.
func Example() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	owned, err := dev.Alloc(5)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := owned.WriteAt([]byte("hello"), 0); err != nil {
		log.Fatal(err)
	}
	handle, err := owned.Export() // its descriptor is sent over a socket
	if err != nil {
		log.Fatal(err)
	}
	mapped, err := dev.Import(handle, driver.ImportOptions{}) // read-only
	if err != nil {
		log.Fatal(err)
	}
	defer mapped.Close()
	if err := handle.Close(); err != nil {
		log.Fatal(err)
	}
	if err := owned.Close(); err != nil { // the bytes remain while they are mapped
		log.Fatal(err)
	}
	text := make([]byte, mapped.Bytes())
	if _, err := mapped.ReadAt(text, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text), handle.Kind, mapped.Writable())
	// Output: hello memfd false
}
