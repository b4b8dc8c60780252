// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHostConfig(t *testing.T) { simulated(t, testHostConfig) }

func testHostConfig(t *testing.T) {
	s := pvesim.DefaultScenario(2)
	s.Hosts[0].Config = map[string]string{"description": "Rack 7"}
	c := asRoot(t, s)
	const config = "/nodes/pve1/config"
	before := c.ok("GET", config).(map[string]any)
	if before["description"] != "Rack 7\n" {
		t.Errorf("notes of the scenario: %v", before)
	}
	c.ok("PUT", config, "description", "Rack 8", "ballooning-target", "70", "digest", before["digest"].(string))
	c.refused(500, "detected modified configuration - file changed by other user? Try again.", "PUT", config, "description", "Rack 9", "digest", before["digest"].(string))
	after := c.ok("GET", config).(map[string]any)
	if after["description"] != "Rack 8\n" || after["ballooning-target"] == nil || after["digest"] == before["digest"] {
		t.Errorf("after the change: %v", after)
	}
	if one := c.ok("GET", config, "property", "description").(map[string]any); one["description"] != "Rack 8\n" || one["ballooning-target"] != nil {
		t.Errorf("one property: %v", one)
	}
	c.ok("PUT", config, "delete", "description")
	if left := c.ok("GET", config).(map[string]any); left["description"] != nil {
		t.Errorf("after the deletion: %v", left)
	}
	if other := c.ok("GET", "/nodes/pve2/config").(map[string]any); len(other) != 1 {
		t.Errorf("config of the other host: %v", other)
	}
}
