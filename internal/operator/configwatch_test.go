// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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
		testenv.RunSimulated(t, name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			replace := func(file, content string) {
				path := filepath.Join(dir, file)
				g.Expect(os.WriteFile(path+".new", []byte(content), 0o600)).To(Succeed())
				g.Expect(os.Rename(path+".new", path)).To(Succeed())
			}
			replace("cloud.yaml", oneCluster)
			replace("types.json", oneType)
			load := func() operator.Settings {
				settings, err := operator.Load([]string{"--cloud-config", filepath.Join(dir, "cloud.yaml"), "--instance-types-file", filepath.Join(dir, "types.json")})
				g.Expect(err).NotTo(HaveOccurred())
				return settings
			}
			settings, other := load(), load()
			stopped := func(ctx context.Context) bool {
				time.Sleep(time.Minute)
				synctest.Wait()
				return ctx.Err() != nil
			}
			ctx := operator.StopOnChange(t.Context(), settings, time.Minute)
			g.Expect(stopped(ctx)).To(BeFalse())
			replace(c.file, c.bad)
			g.Expect(stopped(ctx)).To(BeFalse(), "an invalid file must not stop the controller")
			g.Expect(os.Remove(filepath.Join(dir, c.file))).To(Succeed())
			g.Expect(stopped(ctx)).To(BeFalse(), "a deleted file must not stop the controller")
			replace(c.file, c.good)
			g.Expect(stopped(ctx)).To(BeTrue())
			g.Expect(stopped(operator.StopOnChange(t.Context(), other, time.Minute))).To(BeTrue(), "the file changed since it was loaded")
		})
	}
}
