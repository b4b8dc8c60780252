// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHostConfig(t *testing.T) { simulated(t, testHostConfig) }

func testHostConfig(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(2)
	s.Hosts[0].Config = map[string]string{"description": "Rack 7"}
	c := asRoot(t, s)
	const config = "/nodes/pve1/config"
	before := c.object(config)
	g.Expect(before["description"]).To(Equal("Rack 7\n"), "notes of the scenario")
	c.ok("PUT", config, "description", "Rack 8", "ballooning-target", "70", "digest", before["digest"].(string))
	c.refused(500, "detected modified configuration - file changed by other user? Try again.", "PUT", config, "description", "Rack 9", "digest", before["digest"].(string))
	after := c.object(config)
	if after["description"] != "Rack 8\n" || after["ballooning-target"] == nil || after["digest"] == before["digest"] {
		t.Errorf("after the change: %v", after)
	}
	g.Expect(c.ok("GET", config, "property", "description")).To(fields("description", "Rack 8\n", "ballooning-target", nil), "one property")
	c.ok("PUT", config, "delete", "description")
	g.Expect(c.object(config)["description"]).To(BeNil(), "after the deletion")
	g.Expect(c.object("/nodes/pve2/config")).To(HaveLen(1), "config of the other host")
}
