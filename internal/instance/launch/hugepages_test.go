// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestLaunchHugepages checks that boot data has the hugepages of the instance type, as numbers of pages.
func TestLaunchHugepages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hugepages corev1.ResourceList
		want      string
	}{
		"none": {nil, "hugepages=0,0;"},
		"1Gi":  {corev1.ResourceList{"hugepages-1Gi": resource.MustParse("2Gi")}, "hugepages=2,0;"},
		"both": {corev1.ResourceList{"hugepages-1Gi": resource.MustParse("1Gi"), "hugepages-2Mi": resource.MustParse("512Mi")}, "hugepages=1,256;"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			typ, _ := instancetype.DefaultCatalog().Get(testenv.InstanceType)
			typ.Extra = test.hugepages
			catalog, err := instancetype.NewCatalog([]instancetype.Type{typ})
			testenv.Must(t, err)
			w := testenv.NewFake(t)
			secret := &corev1.Secret{}
			w.Expect(w.Kube.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: testenv.TemplatesSecret}, secret)).To(Succeed())
			secret.Data["user-data"] = []byte("#cloud-config\n# hugepages={{ .Resources.Hugepages1Gi }},{{ .Resources.Hugepages2Mi }};\n")
			w.Expect(w.Kube.Update(t.Context(), secret)).To(Succeed())
			claim := w.StartProcess(testenv.Catalog(catalog)).Launched("pool-abc", w.NodeClass)
			w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(ContainSubstring(test.want))
		})
	}
}
