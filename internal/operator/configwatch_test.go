// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

const (
	oneCluster = "clusters: [{region: a, url: 'https://a:8006', token_id: 'a@pve!b', token_secret: c, insecure: true}]\n"
	oneType    = `[{"name": "small", "capacity": {"cpu": "1", "memory": "1Gi", "pods": "10", "ephemeral-storage": "10G"}}]`
)

func TestStopOnChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, bad, good string }{
		"cloud_config":   {"cloud.yaml", "clusters: [{region: a}]", oneCluster + "# renewed\n"},
		"instance_types": {"types.json", `[{"name": "small"`, oneType + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			dir := t.TempDir()
			replace := func(file, content string) {
				path := filepath.Join(dir, file)
				g.Expect(os.WriteFile(path+".new", []byte(content), 0o600)).To(Succeed())
				g.Expect(os.Rename(path+".new", path)).To(Succeed())
			}
			replace("cloud.yaml", oneCluster)
			replace("types.json", oneType)
			settings, err := operator.Load([]string{"--cloud-config", filepath.Join(dir, "cloud.yaml"), "--instance-types-file", filepath.Join(dir, "types.json")})
			g.Expect(err).NotTo(HaveOccurred())
			ctx := operator.StopOnChange(t.Context(), settings, time.Millisecond)
			defer func() {
				early := operator.StopOnChange(t.Context(), settings, time.Millisecond)
				g.Eventually(early.Done()).WithTimeout(time.Minute).Should(BeClosed(), "the file changed since it was loaded")
			}()
			g.Consistently(ctx.Err).WithTimeout(50 * time.Millisecond).ShouldNot(HaveOccurred())
			replace(c.file, c.bad)
			g.Consistently(ctx.Err).WithTimeout(50*time.Millisecond).ShouldNot(HaveOccurred(), "an invalid file must not stop the controller")
			g.Expect(os.Remove(filepath.Join(dir, c.file))).To(Succeed())
			g.Consistently(ctx.Err).WithTimeout(50*time.Millisecond).ShouldNot(HaveOccurred(), "a deleted file must not stop the controller")
			replace(c.file, c.good)
			g.Eventually(ctx.Done()).WithTimeout(time.Minute).Should(BeClosed())
		})
	}
}
