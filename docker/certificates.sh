#!/bin/sh
# Makes the certificates of a demonstration: one authority, and one identity for each name.
#
#   fedvi-certificates AUTHORITY TLS_ROOT SERVER CLIENT…
#
# Run again, it leaves what is there. In a real federation each site makes its own key with
# `fedvi enroll`, and only the request travels: no machine ever holds the keys of two sites.
set -eu

authority=$1 root=$2 server=$3
shift 3

[ -e "$authority/ca.pem" ] || fedvi ca init "$authority" --name "demonstration"

# A site is told this by another way than the file; here, authority and sites are one machine.
fingerprint=$(fedvi ca list --ca "$authority" | sed -n "s/^authority's fingerprint: //p")

identity() {  # identity NAME ROLE [OPTION…]
  name=$1 role=$2
  shift 2
  folder=$root/$name
  [ -e "$folder/cert.pem" ] && return 0
  fedvi enroll "$name" --dir "$folder" --role "$role" "$@"
  fedvi ca sign "$folder/request.pem" --ca "$authority" --name "$name" --role "$role" \
    --out "$folder/signed.pem"
  fedvi enroll "$name" --dir "$folder" --certificate "$folder/signed.pem" --ca "$authority/ca.pem" \
    --fingerprint "$fingerprint"
  rm "$folder/signed.pem"
}

identity "$server" server --host "$server" --host localhost --host 127.0.0.1
for client; do identity "$client" client; done
# The server reads who may take part from here, and reads it again when it changes.
cp "$authority/roster.json" "$root/$server/roster.json"
# In a container that is root here and nobody special elsewhere.
if [ "$(id -u)" = 0 ]; then chown -R 10001:10001 "$authority" "$root"/*; fi
