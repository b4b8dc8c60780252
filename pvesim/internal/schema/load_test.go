// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for _, v := range []string{"8.4", "9.2"} {
		c, err := Load(v)
		g.Expect(err).NotTo(HaveOccurred())
		if m, vals := c.Find("GET", "/nodes/pve1/storage/local/content/local:iso/x.iso"); m == nil || vals["volume"] != "local:iso/x.iso" {
			t.Errorf("%s: volume path resolved to %v %v", v, m, vals)
		}
		m, _ := c.Find("POST", "/nodes/pve1/qemu")
		errs := c.Validate(m, &Params{Values: map[string]string{"node": "pve1", "vmid": "300", "net0": "foo,bridge=vmbr0", "memory": "1", "scsi99": "x"}})
		g.Expect(errs).To(HaveLen(3), "%v", v)
	}
}
