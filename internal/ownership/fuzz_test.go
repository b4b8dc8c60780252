// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ownership_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// A mark is read again from the notes that it was written to, whatever the notes contain.
// A newer mark is never written.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/formats/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		notes, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(notes), "text")
	}
	f.Add(`<!-- karpenter.proxmox.sinextra.dev {"v":2,"vmid":20123,"cluster":"c","claim":"u","pin":{"0":2}} -->`, "\n")
	f.Add(`<!-- karpenter.proxmox.sinextra.dev {"v":1,"cluster":" --> <!-- "} -->`, "<!-- karpenter.proxmox.sinextra.dev {")
	f.Add(`<!-- karpenter.proxmox.sinextra.dev {"v":1,"cluster":"c","hooks":["\u2028</script>"]} -->`, "} -->")
	f.Fuzz(func(t *testing.T, notes, text string) {
		mark, ok := ownership.Read(notes)
		if !ok {
			if !reflect.DeepEqual(mark, ownership.Mark{}) {
				t.Errorf("%q has no mark, but %+v was read", notes, mark)
			}
			return
		}
		if mark.Version < 1 || mark.KubeCluster == "" {
			t.Errorf("an incomplete mark was read from %q: %+v", notes, mark)
		}
		if mark.Newer() {
			return
		}
		written := mark.Notes(text)
		again, ok := ownership.Read(written)
		if !ok || !equal(mark, again) {
			t.Errorf("%+v was written to %q and read as %+v, %t", mark, written, again, ok)
		}
		if twice := again.Notes(written); twice != written {
			t.Errorf("%q became %q when it was written again", written, twice)
		}
	})
}

// equal compares marks as JSON does, without the difference between nil and empty lists.
func equal(a, b ownership.Mark) bool { return a.Comment() == b.Comment() }
