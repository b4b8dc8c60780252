// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestParseConfigWithFiles(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	files := map[string]string{"/id": "user@pve!token\n", "/secret": "11111111-2222-3333-4444-555555555555\n", "/password": "hidden\n"}
	read := func(path string) ([]byte, error) {
		if content, ok := files[path]; ok {
			return []byte(content), nil
		}
		return nil, fmt.Errorf("%s is not mounted", path)
	}
	const config = "clusters:\n- {region: home, url: https://pve1:8006, insecure: true, token_id_file: /id, token_secret_file: /secret, root: {password_file: /password}}\n"
	parsed, err := proxmox.ParseConfigWithFiles([]byte(config), read)
	g.Expect(err).NotTo(HaveOccurred())
	cluster := parsed.Clusters[0]
	g.Expect([]string{cluster.TokenID, string(cluster.TokenSecret), string(cluster.Root.Password)}).
		To(Equal([]string{"user@pve!token", "11111111-2222-3333-4444-555555555555", "hidden"}))
	g.Expect(cluster.TokenIDFile+cluster.TokenSecretFile+cluster.Root.PasswordFile).To(BeEmpty(), "the config still names files")
	_, err = proxmox.ParseConfigWithFiles([]byte("# home\n\n\nclusters:\n\n- {region: home, url: https://pve1:8006, insecure: true, token_id_file: /id, token_secert_file: /secret}\n"), read)
	g.Expect(err).To(MatchError(HavePrefix("line 6: clusters[0].token_secert_file: ")))
	delete(files, "/secret")
	g.Expect(proxmox.ParseConfigWithFiles([]byte(config), read)).Error().To(MatchError("line 2: token_secret_file: /secret is not mounted"))
}
