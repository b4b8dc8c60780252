// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Every method makes exactly one call.
func TestHACalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		call   func(context.Context, proxmox.Client) (any, error)
		answer reply
		sent   string
		result any
	}{
		"HA_resources": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.HAResources(ctx) },
			answer: data(`[{"sid":"vm:300","type":"vm","state":"started","digest":"d"},{"sid":"ct:301","state":"ignored","max_restart":"0","max_relocate":2,"group":"g","comment":"c"}]`),
			sent:   "GET /cluster/ha/resources",
			result: []proxmox.HAResource{
				{ID: "vm:300", State: "started", MaxRestart: 1, MaxRelocate: 1},
				{ID: "ct:301", State: "ignored", MaxRelocate: 2, Group: "g", Comment: "c"},
			},
		},
		"HA_groups": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.HAGroups(ctx) },
			answer: data(`[{"group":"rack1","type":"group","nodes":"pve1:2,pve2","restricted":1,"digest":"d"}]`), sent: "GET /cluster/ha/groups",
			result: []proxmox.HAGroup{{Name: "rack1", Hosts: []string{"pve1", "pve2"}}},
		},
		"HA_rules": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) { return c.HARules(ctx) },
			answer: data(`[{"rule":"rack1","type":"node-affinity","nodes":"pve1:2,pve2","resources":"vm:300,ct:301","strict":1,"disable":1,"digest":"d","order":1},` +
				`{"rule":"apart","type":"resource-affinity","affinity":"negative","resources":"vm:300","comment":"c","digest":"d"}]`),
			sent: "GET /cluster/ha/rules",
			result: []proxmox.HARule{
				{Name: "rack1", Type: proxmox.HANodeAffinity, Hosts: []string{"pve1", "pve2"}, Resources: []string{"vm:300", "ct:301"}, Disabled: true, Digest: "d"},
				{Name: "apart", Type: proxmox.HAResourceAffinity, Affinity: proxmox.HANegative, Resources: []string{"vm:300"}, Comment: "c", Digest: "d"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			c, host := clientOf(t, always(test.answer))
			result, err := test.call(testContext(t), c)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result).To(Equal(test.result))
			g.Expect(host.requests()).To(HaveLen(1))
			g.Expect(host.requests()[0].String()).To(Equal(test.sent))
		})
	}
}
