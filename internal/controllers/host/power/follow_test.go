// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// A replica that is not the leader shows the hosts that the leader shut down and woke.
func TestFollow(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	replica, err := inventory.New([]proxmox.Client{e.client}, inventory.Options{Settings: e.settings})
	e.Expect(err).NotTo(HaveOccurred())
	follow := func() inventory.HostState {
		t.Helper()
		e.Expect(replica.RefreshAll(e.ctx)).To(Succeed())
		e.Expect(e.store(kubeCluster).Follow(e.ctx, replica)).To(Succeed())
		host, _ := replica.View().Host("home", "pve4")
		return host
	}
	e.Expect(follow().Sleep).To(BeEmpty())
	e.sleepOne()
	e.Expect(follow()).To(And(HaveField("Sleep", inventory.Asleep), HaveField("SleepOutdated", true)))
	e.reserve()
	e.Eventually(func() inventory.SleepState { e.evaluate(0); return follow().Sleep }).WithTimeout(time.Minute).Should(BeEmpty(), e.log.String)

	replica.SetSleeping(nil) // it becomes the leader
	e.Expect(e.store(kubeCluster).Put(e.ctx, inventory.HostName{Region: "home", Host: "pve4"}, &inventory.Sleep{State: inventory.Asleep, KubeCluster: kubeCluster})).To(Succeed())
	e.Expect(follow()).To(And(HaveField("Sleep", BeEmpty()), HaveField("SleepOutdated", false)), "the leader knows better")
}
