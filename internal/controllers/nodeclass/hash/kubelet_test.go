// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash_test

import (
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestInvalidKubeletConfiguration: an invalid change makes the class not ready and
// replaces no Node. After the fix, Nodes with the old configuration are replaced.
func TestInvalidKubeletConfiguration(t *testing.T) {
	t.Parallel()
	w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) { o.OnChange = "" })
	claim := w.launched("a")
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationNodeClassHash: w.class.Hash(), v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion})
	w.start()
	ready := func() operatorstatus.Condition {
		return *testenv.Reload(w.Env, w.class).StatusConditions().Get(operatorstatus.ConditionReady)
	}
	w.Eventually(ready).Should(HaveField("Status", BeEquivalentTo("True")))
	// A patch, because the controllers write to the class at the same time.
	setFields := func(fields map[string]string) {
		testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{Fields: fields}
		})
	}

	for _, fields := range []map[string]string{{"maxPod": "50"}, {"maxPods": `"cpu *"`}, {"maxPods": `"cpu - 50"`}} {
		setFields(fields)
		generation := w.class.Generation
		w.Eventually(ready).Should(And(HaveField("Status", BeEquivalentTo("False")), HaveField("ObservedGeneration", generation),
			HaveField("Message", HavePrefix("KubeletConfigurationValid: spec.kubeletConfiguration.maxPod"))))
		w.recheck()
		w.Consistently(w.drift).WithArguments(claim).WithTimeout(300*time.Millisecond).Should(BeEmpty(), "%v", fields)
	}

	setFields(map[string]string{"maxPods": `"cpu * 10"`})
	w.Eventually(w.drift).WithArguments(claim).Should(Equal(v1alpha1.DriftNodeClass))
}
