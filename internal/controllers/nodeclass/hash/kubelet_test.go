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

	for _, fields := range []map[string]string{{"maxPod": "50"}, {"maxPods": `"cpu *"`}, {"maxPods": `"cpu - 50"`}} {
		testenv.Reload(w.Env, w.class).Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{Fields: fields}
		w.Expect(w.Kube.Update(t.Context(), w.class)).To(Succeed())
		generation := w.class.Generation
		w.Eventually(ready).Should(And(HaveField("Status", BeEquivalentTo("False")), HaveField("ObservedGeneration", generation),
			HaveField("Message", HavePrefix("KubeletConfigurationValid: spec.kubeletConfiguration.maxPod"))))
		w.recheck()
		w.Consistently(w.drift).WithArguments(claim).WithTimeout(300*time.Millisecond).Should(BeEmpty(), "%v", fields)
	}

	testenv.Reload(w.Env, w.class).Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{Fields: map[string]string{"maxPods": `"cpu * 10"`}}
	w.Expect(w.Kube.Update(t.Context(), w.class)).To(Succeed())
	w.Eventually(w.drift).WithArguments(claim).Should(Equal(v1alpha1.DriftNodeClass))
}
