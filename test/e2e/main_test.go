// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run at once than there are CPUs: they mostly wait.
// A -parallel on the command line wins.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err) // the testing package has had this flag for ever
		}
	}
	os.Exit(m.Run())
}
