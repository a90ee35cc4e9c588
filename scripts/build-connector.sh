#!/usr/bin/env bash
# Compiles connector/ against the jars inside the installed pyspark into the jar that the package carries. The sink for
# Kafka is compiled against Kafka's client, which Maven fetches once into the user's cache; without Maven it is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

jars=$(.venv/bin/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
out=src/headgate/match/jars/headgate-connector.jar
classes=connector/build/classes
if [ -n "${JAVA_HOME:-}" ]; then PATH="$JAVA_HOME/bin:$PATH"; fi

rm -rf "$classes" && mkdir -p "$classes" "$(dirname "$out")"
without=()
if [ -n "${CI:-}" ] || command -v mvn >/dev/null; then
  jars="$jars/*:$(.venv/bin/python -m headgate.backend.kafka.spark_jars)"
else
  echo "setup: there is no Maven, so the connector is built without its sink for Kafka"
  without=(-not -path '*/connector/kafka/*')
fi
find connector/src -name '*.java' ${without[@]+"${without[@]}"} >connector/build/sources
javac -nowarn -Xlint:all,-processing,-serial --release 17 -cp "$jars/*" -d "$classes" @connector/build/sources
[ ! -d connector/resources ] || cp -r connector/resources/. "$classes"
jar --create --file "$out.new" -C "$classes" . && mv "$out.new" "$out"
echo "setup: built $out ($(du -k "$out" | cut -f1) kB)"
