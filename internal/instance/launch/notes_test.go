// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestLaunchNotes(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	w.Expect(w.VMConfig(w.Intent(claim)).Description()).To(And(
		ContainSubstring("run: `kubectl delete nodeclaim "+claim.Name+"`\n"),
		ContainSubstring("\n- Kubernetes cluster: "+w.KubeCluster+" (UID"),
		ContainSubstring("\n- NodePool: "+claim.Labels["karpenter.sh/nodepool"]+"\n"),
		ContainSubstring("\n- Size: t1.2VCPU-6GB, 2 CPUs, 6 GiB memory, 30 GiB disk\n"),
		MatchRegexp(`\n- Price: 0\.06\d+, without currency\n`),
	))
}
